import pickle
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from keepstep.dcp.entries import Entry
from keepstep.dcp.opcodes import Sealed, refuse_unsafe
from keepstep.dcp.pickles import pickle_trees, unpickle_tree
from tests.fuzz.mutate import hostile_pickles


@pytest.mark.parametrize(
    "value", [[], {"a": (1, 2.5, None, True)}, b"\xff\n", 1 << 5000, "é" * 300, [[[]]], -(1 << 40)]
)
def test_trees_as_they_are_written_get_through(value: Any) -> None:
    (data,) = pickle_trees({"x": Entry(value)}).values()
    refuse_unsafe(data + b"\0" * 50, memo=False)
    assert unpickle_tree(data + b"\0" * 50) == value


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_dcp_writes_gets_through(tmp_path: Any) -> None:
    state = {f"layer.{i}": torch.ones(2, 3, 1, 1) for i in range(300)} | {
        "n": {"a": [1, {"b": (2, 3)}]},
        "s": torch.tensor(1),
    }
    dcp.save(state, checkpoint_id=tmp_path, no_dist=True)
    refuse_unsafe((tmp_path / ".metadata").read_bytes())


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_many_tuples_that_are_not_deep_get_through(protocol: int) -> None:
    refuse_unsafe(pickle.dumps([(str(i), [i], (None, i)) for i in range(9000)], protocol))


@pytest.mark.parametrize("number", range(6))
def test_tuples_without_end_are_refused(number: int) -> None:
    if number in (4, 5):
        refuse_unsafe(hostile_pickles()[number])  # nothing in these is too deep; what they ask for is refused later
        return
    with pytest.raises(pickle.UnpicklingError, match="nested"):
        refuse_unsafe(hostile_pickles()[number])


@pytest.mark.parametrize(
    "data", [b"", b"N", b"\x8c\x05ab.", b"Nr\xff\xff\xff\xff.", b"\x96" + b"\0" * 8 + b".", b"I1\n.", b"2."]
)
def test_what_no_writer_needs_is_refused(data: bytes) -> None:
    with pytest.raises(pickle.UnpicklingError):
        refuse_unsafe(data)


def test_a_tree_has_no_memo() -> None:
    with pytest.raises(pickle.UnpicklingError):
        unpickle_tree(pickle.dumps(["a"], 2))


def test_a_sealed_class_keeps_its_attributes() -> None:
    class Closed(metaclass=Sealed):
        pass

    with pytest.raises(TypeError):
        Closed.value = 1  # type: ignore[attr-defined]
