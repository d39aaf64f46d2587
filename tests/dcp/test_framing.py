"""Frames that torch.load reads like torch.save's own."""

import io

import pytest
import torch

from keepstep.dcp.digests import bytes_of
from keepstep.dcp.framing import ALIGNED_FROM, frame
from keepstep.storage.digest import BLOCK_SIZE

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
@pytest.mark.parametrize("offset", [0, 12345])
def test_torch_loads_what_was_framed(tensor: torch.Tensor, offset: int) -> None:
    raw = bytes_of(tensor)
    framed = frame(tensor.dtype, tensor.shape, len(raw), offset)
    archive = framed.head + bytes(raw) + framed.tail
    for only_weights in (True, False):
        back = torch.load(io.BytesIO(archive), weights_only=only_weights)
        assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
        assert bytes_of(back) == raw
        assert back.is_contiguous()
    around = len(archive) - len(raw)
    assert around <= 700 if len(raw) < ALIGNED_FROM else around <= 700 + BLOCK_SIZE
    if len(raw) >= ALIGNED_FROM:
        assert (offset + len(framed.head)) % BLOCK_SIZE == 0


def test_sizes_above_four_gigabytes_are_written_with_the_long_fields(tmp_path: object) -> None:
    size = (1 << 32) + 4
    framed = frame(torch.uint8, (size,), size, 0)
    assert b"PK\x06\x06" in framed.tail
    assert size.to_bytes(8, "little") in framed.head
