"""From a checkpoint to one file of `torch.save`, which anything that knows torch loads. All weights are in memory."""

import logging
import os
from collections import OrderedDict
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

import torch
import xxhash

from keepstep.dcp.opcodes import MALFORMED
from keepstep.dcp.regions import Box
from keepstep.dcp.source import DamageFoundError
from keepstep.errors import ConfigError, DamagedCheckpointError, ExportError, KeepstepError
from keepstep.export.folder import scratch_name
from keepstep.export.mapper import Mapper
from keepstep.export.selection import MODEL, Dtype, Selection, Wish
from keepstep.export.stream import Outgoing, WrittenFile, digest_of
from keepstep.export.trainer_checkpoint import select_any
from keepstep.export.weights import MAX_SHARD_SIZE, Exported, Watch
from keepstep.storage.local import free_bytes, make_folders, remove_tree, sync_folder

logger = logging.getLogger("keepstep")

# The attribute of the state dict that says where its weights come from. Readers of state dicts do not see it.
NOTE = "keepstep"


def export_torch(
    checkpoint: str | Path,
    target: str | Path,
    source: str | Path | None = None,
    *,
    weights: str = MODEL,
    dtype: Dtype | None = None,
    partial: bool = False,
    mapper: Mapper | None = None,
    named: str | None = None,
    merge: bool = False,
    adapter: str | None = None,
    watch: Watch = lambda done, total: None,
) -> Exported:
    """Write the model of a checkpoint as a flat state dict, for `torch.load(weights_only=True)`.

    The file appears in one rename when it is on disk and was read back. Tied weights stand under all of their names
    and share their memory. All weights are in memory at once.

    Args:
        checkpoint: a `save-<step>` folder, of any layout and number of ranks.
        target: the file. One that is there is replaced only if an earlier export made it.
        source, weights, dtype, partial, mapper, named, merge, adapter: see `keepstep.export.weights.export_weights`.
        watch: told of the progress, in bytes.

    Raises:
        ConfigError: an argument cannot work, or something else lies at `target`.
        DamagedCheckpointError: a byte of what is exported is not as it was written.
        StateMismatchError: `source` is not what the run was begun with.
        UnsupportedStateError: a tensor of a dtype that safetensors files do not have.
        ExportError: there is no room, or what is read back is not what was written.
    """
    checkpoint, target = Path(checkpoint), Path(target)
    if dtype not in (None, *get_args(Dtype)):
        raise ConfigError(f"dtype must be one of {', '.join(get_args(Dtype))}")
    _check_target(target)
    if target.resolve().is_relative_to(checkpoint.resolve()):
        raise ConfigError(f"export to {target}: nobody writes into a checkpoint; choose another place")
    wish = Wish(
        source, weights.rstrip("."), dtype, MAX_SHARD_SIZE, partial, None, mapper, named, merge=merge, adapter=adapter
    )
    try:
        with ExitStack() as stack:
            chosen = select_any(stack, checkpoint, wish)
            make_folders(target.parent)
            free = free_bytes(target.parent)
            if free is not None and free < chosen.size:
                raise ExportError(f"export to {target}: it needs {chosen.size} bytes, and {free} are free")
            state = _read(chosen, dtype, watch)
            written = _write(target, state)
    except DamageFoundError as error:
        raise DamagedCheckpointError(f"{checkpoint} is damaged and not exported: {error}") from error
    except OSError as error:
        if isinstance(error, KeepstepError):
            raise
        raise ExportError(f"export to {target} failed: {error}") from error
    return Exported(chosen.step, chosen.identity["run"], len(state), {target.name: written}, chosen.tied)


def read_note(path: Path) -> dict[str, Any]:
    """What an exported file says of its weights; empty of a file that keepstep did not make."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (*MALFORMED, OSError):
        return {}
    note = getattr(state, NOTE, None)
    return note if isinstance(note, dict) else {}


def _check_target(target: Path) -> None:
    """Raises ConfigError where something lies that is no export."""
    if os.path.lexists(target) and not (target.is_file() and not target.is_symlink() and read_note(target)):
        raise ConfigError(
            f"export to {target}: something that is no export of keepstep lies there; choose another name"
        )


def _read(chosen: Selection, dtype: Dtype | None, watch: Watch) -> "OrderedDict[str, torch.Tensor]":
    """The state dict. Every block that is read was compared with its digest."""
    state: OrderedDict[str, torch.Tensor] = OrderedDict()
    done, lost = 0, {}
    outgoing = [one for tensors in chosen.files.values() for one in tensors]
    for one in outgoing:
        state[one.kind.key], count = _tensor(one)
        if count:
            lost[one.kind.key] = count
        done += one.kind.size
        watch(done, chosen.size)
    for origin in {one.origin for one in outgoing}:
        origin.check_frozen()
    for name, kept in chosen.tied.items():
        state[name] = state[kept]
    if lost:
        name, count = max(lost.items(), key=lambda item: item[1])
        logger.warning(
            "%d numbers are too large for %s and became infinite, %d of them in %s; bfloat16 holds them",
            *(sum(lost.values()), dtype, count, name),
        )
    setattr(state, NOTE, {**chosen.identity, "tied": dict(chosen.tied)})
    return state


def _tensor(one: Outgoing) -> tuple[torch.Tensor, int]:
    """A weight as it is written, and how many of its finite numbers became infinite."""
    key, shape = one.kind.key, one.kind.shape
    stored = torch.empty(shape, dtype=one.origin.weights[key].dtype)
    one.origin.fill([(key, Box((0,) * len(shape), shape), stored)])
    dtype: torch.dtype = getattr(torch, one.kind.dtype)
    if dtype == stored.dtype:
        return stored, 0
    cast = stored.to(dtype)
    return cast, int((cast.isinf() & stored.isfinite()).sum())


class _Digested:
    """A new file that torch writes to; what it was given is digested."""

    def __init__(self, path: Path) -> None:
        self._state, self._size = xxhash.xxh3_128(), 0
        self._file = path.open("xb")

    def write(self, data: bytes | memoryview) -> int:
        self._state.update(data)
        self._size += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> WrittenFile:
        """Sync it, and say what it should hold."""
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
        return WrittenFile(self._size, self._state.hexdigest())


def _write(target: Path, state: "OrderedDict[str, torch.Tensor]") -> WrittenFile:
    scratch = target.with_name(scratch_name(target.name))
    remove_tree(scratch)
    try:
        file = _Digested(scratch)
        try:
            torch.save(state, file)  # type: ignore[arg-type]
        except RuntimeError as error:  # torch's writer says so when its file refuses bytes
            raise ExportError(f"export to {target} failed: {str(error).splitlines()[0]}") from error
        finally:
            written = file.close()
        if digest_of(scratch) != written:
            raise ExportError(f"{target}: what is read back is not what was written; is the disk or the memory sound?")
        scratch.replace(target)
        sync_folder(target.parent)
    finally:
        remove_tree(scratch)
    return written
