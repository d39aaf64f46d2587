"""Digests of values in memory: equal bits give equal digests, on any rank and in any process."""

import pickle
from io import BytesIO
from typing import Any

import torch
import xxhash
from torch.distributed.tensor import DTensor

# Real numbers that NumPy has: the short way for the many small tensors of a job.
_OF_NUMPY = frozenset({torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8, torch.int8})


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """A tensor's elements row by row; of a contiguous tensor on the CPU its own memory, of any other a copy."""
    if (
        tensor.dtype in _OF_NUMPY
        and tensor.device.type == "cpu"
        and tensor.is_contiguous()
        and tensor.numel()
        and not tensor.is_neg()
    ):
        elements: Any = tensor.detach().numpy()
        return memoryview(elements).cast("B")
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    if not plain.numel():
        return memoryview(b"")
    # One element counts as contiguous whatever its stride.
    array: Any = plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy()
    return memoryview(array)


def digest_tensor(tensor: torch.Tensor) -> str:
    """Of dtype, shape and bytes; of a DTensor those of this rank's shard."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return f"{tensor.dtype}{tuple(tensor.shape)}{xxhash.xxh3_128_hexdigest(bytes_of(local))}"


def digest_tree(tree: Any) -> str:
    """Of a plain Python tree (see `keepstep.state.codec`)."""
    # Without its memo the pickler writes equal trees as equal bytes, whichever of their strings are one object.
    stream = BytesIO()
    pickler = pickle.Pickler(stream, protocol=4)
    pickler.fast = True
    pickler.dump(tree)
    return xxhash.xxh3_128_hexdigest(stream.getvalue())
