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
    if number == 4:
        refuse_unsafe(hostile_pickles()[number])  # nothing in these is too deep; what they ask for is refused later
        return
    with pytest.raises(pickle.UnpicklingError, match=r"nested|opcode 0x6[25]"):
        refuse_unsafe(hostile_pickles()[number])


@pytest.mark.parametrize("put", [b"\x94", b"q"])
@pytest.mark.parametrize("width", [2, 3, 1000])
def test_tuples_that_hold_each_other_without_end_are_refused(put: bytes, width: int) -> None:
    def numbered(number: int) -> bytes:
        return put + (bytes([number]) if put == b"q" else b"")

    levels = b"".join(b"(" + (b"h" + bytes([n])) * width + b"t" + numbered(n + 1) for n in range(60))
    with pytest.raises(pickle.UnpicklingError, match="hold each other"):
        refuse_unsafe(b"\x80\x02N" + numbered(0) + levels + b".")


def test_a_tuple_may_be_in_several_places() -> None:
    pair = (1, "a")
    refuse_unsafe(pickle.dumps([pair] * 1000, 2))


@pytest.mark.parametrize(
    "before",
    [
        b"K\x01\x85Nb",
        b"Nq\x00h\x00",
        b"K\x01\x85(N\x89tb",
        b"K\x01\x85N(ub",
        b"K\x01\x85(u",
        b"K\x01\x85\x95" + b"\0" * 8,
        b"K\x01\x85\x80\x02",
    ],
)
def test_a_tuple_gets_into_the_memo_directly_or_not_at_all(before: bytes) -> None:
    with pytest.raises(pickle.UnpicklingError):
        refuse_unsafe(before + b"\x94.")


def test_a_tuple_behind_what_is_taken_away_again_counts() -> None:
    with pytest.raises(pickle.UnpicklingError, match="nested"):
        refuse_unsafe(b"\x80\x04N\x85" + b"\x8c\x00\x940\x8c\x00\x86" * 60_000 + b".")


def test_a_memo_is_numbered_in_one_way() -> None:
    with pytest.raises(pickle.UnpicklingError, match="two ways"):
        refuse_unsafe(b"N\x85\x94Nq\x07.")


@pytest.mark.parametrize("size", range(9))
def test_the_bytes_of_a_number_are_not_taken_for_opcodes(size: int) -> None:
    refuse_unsafe(b"\x8a" + bytes([size]) + b"X" * size + b".")
    with pytest.raises(pickle.UnpicklingError, match="0x96"):
        refuse_unsafe(b"\x8a" + bytes([size]) + b"X" * size + b"\x96" + b"\0" * 8 + b".")


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
