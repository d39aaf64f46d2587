"""Opens weights that others wrote: files of torch.save, folders of plain DCP, safetensors. Nothing is trusted in them.

Where the form allows it (safetensors, torch.save since 1.6) tensors are mapped into memory, and read when their bytes
are asked for; those of a DCP folder are all read.
"""

import json
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from keepstep.errors import ConfigError, CouldNotLookError, DamagedCheckpointError
from keepstep.export.incoming_dcp import read_dcp_folder
from keepstep.export.incoming_torch import is_torch_file, read_torch_file
from keepstep.export.source import find_files
from keepstep.plan import layout
from keepstep.plan.picking import PickingError, pick
from keepstep.plan.weight_files import INDEX_FILE, SINGLE_FILE


@dataclass(frozen=True)
class Incoming:
    """Weights by name. Tied ones are one tensor under several names.

    Attributes:
        form: "safetensors", "torch" or "dcp".
        tensors: they are only read, and valid as long as the stack is that they were opened with.
        left_out: what else the source holds, by the first part of its name.
    """

    form: str
    tensors: dict[str, torch.Tensor]
    left_out: tuple[str, ...]


def open_weights(stack: ExitStack, source: Path, prefix: str | None = None) -> Incoming:
    """Find out what a source is, and open its weights.

    Args:
        stack: closes files.
        source: a file of torch.save or safetensors, a folder of `torch.distributed.checkpoint.save`, or a folder with
            a safetensors model state.
        prefix: see `keepstep.plan.picking.pick`.

    Raises:
        ConfigError: it is missing, of an unknown kind, or its weights cannot be told from other values.
        DamagedCheckpointError: a file is cut off or not readable.
        UnsupportedStateError: it holds what only general unpickling could read.
        CouldNotLookError: a file cannot be read.
    """
    form = _form_of(source)
    try:
        if form == "torch":
            return Incoming(form, *read_torch_file(source, prefix))
        if form == "dcp":
            return Incoming(form, *read_dcp_folder(source, prefix))
        tensors = _map_safetensors(stack, source)
        picked = pick(dict.fromkeys(((name,) for name in tensors), True), prefix)
        return Incoming(form, {name: tensors[path[0]] for name, path in picked.paths.items()}, picked.left_out)
    except PickingError as error:
        raise ConfigError(f"{source}: {error}") from None


def _form_of(source: Path) -> str:
    if source.is_dir():
        if (source / layout.MANIFEST).is_file() and layout.step_of(source.resolve().name) is not None:
            raise ConfigError(f"{source} is a checkpoint of keepstep already; `keepstep export` takes its weights out")
        if (source / layout.METADATA).is_file():
            return "dcp"
        if (source / SINGLE_FILE).is_file() or (source / INDEX_FILE).is_file():
            return "safetensors"
        raise ConfigError(f"{source}: no weights there; a folder must hold .metadata, {SINGLE_FILE} or {INDEX_FILE}")
    if not source.is_file():
        raise ConfigError(f"{source}: there is no such file or folder")
    try:
        with source.open("rb") as file:
            begin = file.read(9)
    except OSError as error:
        raise CouldNotLookError(f"cannot read {source}: {error}") from error
    # A header of safetensors is 8 bytes of length and JSON.
    if source.suffix == ".safetensors" or begin[8:] == b"{":
        return "safetensors"
    if is_torch_file(begin):
        return "torch"
    raise ConfigError(f"{source} is of an unknown kind: no file of torch.save, and no safetensors file")


def _map_safetensors(stack: ExitStack, source: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    ties: dict[str, str] = _ties_in_index(source)
    for path in find_files(source, "SOURCE"):
        if source.is_dir() and (path.parent != source or not layout.is_safe_file_name(path.name)):
            raise ConfigError(f"{source / INDEX_FILE} names {str(path)!r}, which is no file in its folder")
        try:
            file: Any = stack.enter_context(safe_open(path, framework="pt"))
            ties |= file.metadata() or {}
            names = list(file.keys())
            clashing = sorted(tensors.keys() & set(names))
            if clashing:
                raise ConfigError(f"{source}: two of its files hold a tensor with the name {clashing[0]}")
            tensors |= {name: file.get_tensor(name) for name in names}
        except SafetensorError as error:
            raise DamagedCheckpointError(f"{path} is not readable: {error}") from error
        except OSError as error:
            raise CouldNotLookError(f"cannot read {path}: {error}") from error
    # Of tied weights such files hold one, and note the other names beside it.
    aliases = {name: kept for name, kept in ties.items() if kept in tensors and name not in tensors}
    return tensors | {name: tensors[kept] for name, kept in aliases.items()}


def _ties_in_index(source: Path) -> dict[str, str]:
    """The notes of an index; that it is readable `find_files` says."""
    if not source.is_dir() or not (source / INDEX_FILE).is_file() or (source / SINGLE_FILE).is_file():
        return {}
    try:
        notes = json.loads((source / INDEX_FILE).read_text())["metadata"]
        return {name: kept for name, kept in notes.items() if isinstance(kept, str)}
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}
