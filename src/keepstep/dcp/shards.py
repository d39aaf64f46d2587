"""Parts of tensors, on this rank."""

from collections.abc import Iterator

import torch
from torch.distributed.tensor import DTensor

from keepstep.dcp.regions import Box


def parts_of(tensor: torch.Tensor) -> Iterator[tuple[Box, torch.Tensor]]:
    """This rank's parts of a tensor: their boxes in the whole, and the memory to fill."""
    if not isinstance(tensor, DTensor):
        yield Box((0,) * tensor.ndim, tuple(tensor.shape)), tensor
        return
    local = tensor.to_local()
    for chunk in tensor.__create_chunk_list__():
        box = Box(tuple(chunk.offsets), tuple(chunk.sizes))
        if box.elements:
            yield box, local


def narrowed(tensor: torch.Tensor, box: Box) -> torch.Tensor:
    """A view of a part of a tensor."""
    for dim, (begin, length) in enumerate(zip(box.at, box.shape, strict=True)):
        tensor = tensor.narrow(dim, begin, length)
    return tensor


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether its elements lie on the CPU row by row, as they are."""
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
