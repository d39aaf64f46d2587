import datetime
import enum
import io
import pathlib
import random
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import keepstep
from keepstep.errors import UnsupportedStateError
from keepstep.state.codec import decode, encode


def round_trip(value: Any) -> Any:
    """Through the codec, and through the file form and the reader that refuses classes."""
    tensors: dict[str, torch.Tensor] = {}
    tree = encode(value, "task.x", tensors)
    file = io.BytesIO()
    torch.save(tree, file)
    file.seek(0)
    return decode(torch.load(file, weights_only=True), tensors)


@keepstep.declare
class Color(enum.Enum):
    RED = 1


@keepstep.declare
@dataclass
class Point:
    x: int
    history: list[float]


Pair = keepstep.declare(namedtuple("Pair", "left right"))

VALUES = [
    None,
    True,
    0,
    -1,
    2**200,
    1.5,
    float("inf"),
    -0.0,
    "",
    "ä\0\ud800",
    b"\0\xff",
    bytearray(b"ab"),
    (1, (2, [3])),
    [],
    {},
    {"a": {"b": [1, {"c": (None,)}]}},
    {1: "int", (2, "x"): "tuple", None: 3},
    {"__keepstep__": "tensor", "key": "not one"},
    {1, 2, 3},
    frozenset({"a", "b"}),
    OrderedDict([("b", 1), ("a", 2)]),
    deque([1, 2], maxlen=3),
    Counter({"b": 2, "a": 1}),
    defaultdict(list, {"a": [1]}),
    defaultdict(None, {"a": 1}),
    1 + 2j,
    datetime.datetime(2026, 1, 2, 3, 4, 5, 6),
    datetime.date(2026, 1, 2),
    datetime.time(3, 4),
    datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=2))),
    datetime.timedelta(days=-1, microseconds=7),
    pathlib.Path("a/b"),
    torch.bfloat16,
    torch.device("cpu"),
    torch.Size([2, 3]),
    Color.RED,
    Point(3, [0.1]),
    Pair(1, [2]),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_listed_value_comes_back_as_it_was(value: Any) -> None:
    back = round_trip({"inside": [value]})["inside"][0]
    assert back == value
    assert type(back) is type(value)
    assert repr(back) == repr(value)


@pytest.mark.parametrize(
    "array", [np.arange(6).reshape(2, 3)[:, ::2], np.float32(1.5), np.array([]), np.array(["ab"]), np.float64("nan")]
)
def test_numpy_arrays_and_scalars(array: Any) -> None:
    back = round_trip(array)
    assert type(back) is type(array)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize("bits", ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"])
def test_numpy_generators_go_on_where_they_were(bits: str) -> None:
    generator = np.random.Generator(getattr(np.random, bits)(5))
    generator.integers(0, 10, 7, dtype=np.int32)
    back = round_trip(generator)
    assert back.integers(0, 1000, 20).tolist() == generator.integers(0, 1000, 20).tolist()
    assert back.standard_normal() == generator.standard_normal()
    assert back.spawn(1)[0].random() == generator.spawn(1)[0].random()


def test_other_sources_of_random_numbers_go_on_where_they_were() -> None:
    python, of_torch = random.Random(3), torch.Generator().manual_seed(4)
    python.random(), torch.rand(2, generator=of_torch)
    back = round_trip([python, of_torch])
    assert back[0].random() == python.random()
    assert torch.equal(torch.rand(3, generator=back[1]), torch.rand(3, generator=of_torch))


def test_tensors_are_taken_out_under_their_path() -> None:
    value = {"deep": [torch.ones(2), {"er": torch.zeros(3)}]}
    tensors: dict[str, torch.Tensor] = {}
    tree = encode(value, "task.state", tensors)
    assert set(tensors) == {"task.state.deep.0", "task.state.deep.1.er"}
    back = decode(tree, tensors)
    assert torch.equal(back["deep"][1]["er"], torch.zeros(3))


STRUCTURED = np.zeros(2, dtype=[("a", int)])
MASKED = np.ma.masked_array([1, 2], [True, False])


class Odd:
    pass


class MyInt(int):
    pass


@pytest.mark.parametrize(
    "value",
    [
        Odd(),
        lambda: 0,
        MyInt(3),
        np.array([Odd()]),
        object,
        io.BytesIO(),
        datetime.UTC,
        range(3),
        defaultdict(Odd),
        STRUCTURED,
        MASKED,
    ],
)
def test_any_other_type_is_refused_by_its_path(value: Any) -> None:
    with pytest.raises(UnsupportedStateError, match=r"task\.x\.list\.1"):
        encode({"list": [0, value]}, "task.x", {})


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(UnsupportedStateError, match="contains itself"):
        encode(loop, "task.x", {})


def test_names_that_meet_are_refused() -> None:
    with pytest.raises(UnsupportedStateError, match=r"two tensors .* task\.x\.a\.b"):
        encode({"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}, "task.x", {})


def test_an_undeclared_class_in_a_checkpoint_is_refused() -> None:
    with pytest.raises(UnsupportedStateError, match=r"os\.system"):
        decode({"__keepstep__": "declared", "class": "os.system", "fields": {}}, {})
    with pytest.raises(UnsupportedStateError, match="unknown kind"):
        decode({"__keepstep__": "exec"}, {})


def test_only_plain_classes_can_be_declared() -> None:
    with pytest.raises(UnsupportedStateError, match="Odd"):
        keepstep.declare(Odd)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()


@given(st.recursive(SCALARS, lambda s: st.lists(s) | st.tuples(s, s) | st.dictionaries(SCALARS, s), max_leaves=20))
def test_any_tree_of_plain_values_comes_back(value: Any) -> None:
    assert repr(round_trip(value)) == repr(value)
