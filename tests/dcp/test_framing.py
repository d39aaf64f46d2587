"""Frames that torch.load reads like torch.save's own."""

import io
import pickle

import pytest
import torch

from keepstep.dcp.digests import bytes_of
from keepstep.dcp.entries import Entry
from keepstep.dcp.framing import ELEMENT, tensor_frame, tree_frame
from keepstep.dcp.pickles import pickle_trees, unpickle_tree

TENSORS = [
    torch.tensor(-0.0),
    torch.randn(3, 5),
    torch.empty(0, 4),
    torch.randn(2, 1, 3, 1, 2, 2, 1),
    torch.randn(7).to(torch.float8_e4m3fn),
    torch.randn(3, dtype=torch.complex64).conj(),
    torch.tensor([True, False]),
    torch.tensor([-5, 4], dtype=torch.int8),
    torch.tensor([1, 2], dtype=torch.uint16),
    torch.randn(4).bfloat16(),
    torch.tensor([0x7FC00001, 0x7F800001], dtype=torch.int32).view(torch.float32),
    torch.randn(4, 6).t(),
    torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
    torch.arange(3.0).expand(4, 3),
    torch.randn(300, 1000),
]


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda t: f"{t.dtype} {tuple(t.shape)} {t.stride()}")
def test_torch_loads_what_was_framed(tensor: torch.Tensor) -> None:
    raw = bytes_of(tensor)
    framed = tensor_frame(tensor.dtype, tuple(tensor.shape))
    archive = framed.head + bytes(raw) + framed.tail
    for only_weights in (True, False):
        back = torch.load(io.BytesIO(archive), weights_only=only_weights)
        assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
        assert bytes_of(back) == raw
        assert back.is_contiguous()
    assert len(archive) - len(raw) <= 720
    assert len(framed.head) % ELEMENT == 0


TREES = [{"a": [1, 2.5, "x", b"\x00\xff", None, True]}, {}, list(range(1000)), "ünï", (1, (2, 3))]


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: str(tree)[:20])
@pytest.mark.parametrize("spare", [0, 1, 5000, 60_000])
def test_torch_loads_a_tree_from_a_slot_that_is_too_long_for_it(tree: object, spare: int) -> None:
    data = pickle_trees({"tree": Entry(tree)})["tree"]
    framed = tree_frame(len(data) + spare)
    slot = data + bytes(spare)
    for only_weights in (True, False):
        assert torch.load(io.BytesIO(framed.head + slot + framed.tail), weights_only=only_weights) == tree
    assert unpickle_tree(slot) == tree


def test_sizes_above_four_gigabytes_are_written_with_the_long_fields() -> None:
    size = (1 << 32) + 4
    framed = tensor_frame(torch.uint8, (size,))
    assert b"PK\x06\x06" in framed.tail
    assert size.to_bytes(8, "little") in framed.head


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return print, ("code ran",)


@pytest.mark.parametrize("data", [pickle.dumps(Evil()), pickle.dumps(b"x", 0).replace(b"latin1", b"rot13!"), b""])
def test_a_pickle_that_asks_for_more_than_plain_values_is_refused(
    data: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((pickle.UnpicklingError, EOFError)):
        unpickle_tree(data)
    assert capsys.readouterr().out == ""
