"""Reads a file of torch.save, by torch's restricted unpickler only."""

import pickle
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from keepstep.dcp.opcodes import MALFORMED
from keepstep.errors import ConfigError, CouldNotLookError, DamagedCheckpointError, UnsupportedStateError
from keepstep.plan.picking import PickingError, pick

_ZIP = b"PK\3\4"
_PICKLE = b"\x80"
_ASKED = re.compile(r"(GLOBAL [\w.]+)")
_DETAIL = re.compile(r"WeightsUnpickler error: ([^\n]+)")


def is_torch_file(begin: bytes) -> bool:
    """Whether a file that begins so may be one of torch.save: an archive, or a pickle as before torch 1.6."""
    return begin.startswith((_ZIP, _PICKLE))


def read_torch_file(source: Path, prefix: str | None) -> tuple[dict[str, torch.Tensor], tuple[str, ...]]:
    """The weights by name, and what else the file holds. Archives are mapped into memory.

    Args:
        source: the file.
        prefix: see `keepstep.plan.picking.pick`.

    Raises:
        PickingError: the weights cannot be told from other values.
        ConfigError: it holds something else than a dict.
        UnsupportedStateError: it holds what only general unpickling could read.
        DamagedCheckpointError: it is cut off or not readable.
        CouldNotLookError: it cannot be read.
    """
    held = _load(source)
    if not isinstance(held, Mapping):
        raise ConfigError(f"{source} holds no state dict, but a {type(held).__name__}")
    values: dict[tuple[str, ...], Any] = {}
    for path, value in _leaves(held, (), frozenset()):
        if path in values:
            raise PickingError(f"two of its values have the name {'.'.join(path)}")
        values[path] = value
    picked = pick({path: isinstance(value, torch.Tensor) for path, value in values.items()}, prefix)
    return _tied({name: values[path] for name, path in picked.paths.items()}), picked.left_out


def _load(source: Path) -> Any:
    try:
        with source.open("rb") as file:
            is_archive = file.read(4) == _ZIP  # others cannot be mapped
        with warnings.catch_warnings(action="ignore"):  # of what it cannot read an error tells
            return torch.load(source, map_location="cpu", weights_only=True, mmap=is_archive)
    except pickle.UnpicklingError as error:
        told = _ASKED.search(str(error)) or _DETAIL.search(str(error))
        if told is None:
            raise DamagedCheckpointError(f"{source} is not readable: no pickle that torch.save writes") from None
        raise UnsupportedStateError(
            f"{source} needs general unpickling, which can run any code ({told[1]}); save a state dict instead"
        ) from None
    except MALFORMED as error:
        first = str(error).partition("\n")[0].partition(". ")[0]
        raise DamagedCheckpointError(f"{source} is not readable: {type(error).__name__}: {first}") from None
    except OSError as error:
        raise CouldNotLookError(f"cannot read {source}: {error}") from error


def _leaves(
    held: Mapping[Any, Any], path: tuple[str, ...], above: frozenset[int]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All values of nested dicts."""
    if id(held) in above:
        raise PickingError(f"{'.'.join(path)} holds itself")
    for key, value in held.items():
        place = (*path, str(key))
        if isinstance(value, Mapping):
            yield from _leaves(value, place, above | {id(held)})
        else:
            yield place, value


def _tied(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same, where the same memory seen in the same way is one tensor: a `state_dict` makes one for each name."""
    known: dict[tuple[Any, ...], torch.Tensor] = {}
    result = {}
    for name, value in tensors.items():
        plain = value.detach()
        if plain.layout is torch.strided and plain.device.type == "cpu" and plain.numel():
            seen = (plain.data_ptr(), plain.dtype, plain.shape, plain.stride(), plain.is_conj(), plain.is_neg())
            plain = known.setdefault(seen, plain)
        result[name] = plain
    return result
