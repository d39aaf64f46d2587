"""From a checkpoint to a safetensors model state, atomically. Needs no model code and no GPU."""

import logging
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar, get_args

from keepstep.dcp.source import DamageFoundError
from keepstep.dist.agree import told_by_all
from keepstep.dist.world import SingleWorld, World
from keepstep.errors import ConfigError, DamagedCheckpointError, ExportError, KeepstepError
from keepstep.export.folder import (
    RECORD_FILE,
    begin,
    check_target,
    finish,
    give_up,
    is_whole,
    read_export,
    scratch_name,
)
from keepstep.export.mapper import Mapper
from keepstep.export.selection import MODEL, Dtype, Wish, identity_of
from keepstep.export.side_files import copy_side_files
from keepstep.export.stream import WrittenFile, write_file
from keepstep.export.trainer_checkpoint import select_any, side_files_of
from keepstep.plan.weight_files import INDEX_FILE, SINGLE_FILE, header, index_text
from keepstep.storage.local import free_bytes

__all__ = ["RECORD_FILE", "Exported", "check_target", "export_weights", "identity_of", "is_exported"]

logger = logging.getLogger("keepstep")

T = TypeVar("T")
Watch = Callable[[int, int], object]
MAX_SHARD_SIZE = 5 * 10**9


@dataclass(frozen=True)
class Exported:
    """What was written: names of files with size (bytes) and digest, tensors, and the names left out as tied."""

    step: int
    run: str | None
    tensors: int
    files: dict[str, WrittenFile]
    tied: dict[str, str]


def export_weights(
    checkpoint: str | Path,
    target: str | Path,
    source: str | Path | None = None,
    *,
    weights: str = MODEL,
    dtype: Dtype | None = None,
    max_shard_size: int = MAX_SHARD_SIZE,
    side_files: str | Path | None = None,
    source_mapper: Mapper | None = None,
    partial: bool = False,
    mapper: Mapper | None = None,
    named: str | None = None,
    merge: bool = False,
    adapter: str | None = None,
    world: World | None = None,
    watch: Watch = lambda done, total: None,
) -> Exported:
    """Write the model of a checkpoint as safetensors in Hugging Face's layout; the folder appears when it is complete.

    Args:
        checkpoint: a `save-<step>` folder, of any layout and number of ranks, or a committed one of a Trainer.
        target: the folder to make. In the folder of an earlier export only keepstep's own files are replaced; a
            folder with anything else is refused.
        source: a safetensors model state that has the weights which a trainable-only checkpoint does not hold.
        weights: what the keys to export begin with; the rest of a key is the tensor's name. `task.ema`, for example.
        dtype: what floats of 16 bits and more are cast to; None leaves all as they are.
        max_shard_size: bytes of tensors in a file, from which on there are several, with an index.
        side_files: a folder whose configuration and tokenizer files are put beside the weights; by default a Trainer's
            own ones.
        source_mapper: from the names and shapes of `source` to those of the checkpoint.
        partial: write a trainable-only checkpoint without `source`, as the part of a model that it is.
        mapper: from the checkpoint's names and shapes to those of the files.
        named: in place of `weights`: the set that an object of the job keeps under this name ("ema").
        merge: put the adapter that the checkpoint holds into the weights of `source`, which is its base.
        adapter: the adapter's name; may be left out where there is one only.
        world: ranks that all call this; each writes some of the files. By default this process alone.
        watch: told of the progress, in bytes; `total` is this rank's.

    Raises:
        ConfigError: an argument cannot work: the checkpoint is none, `target` holds something that is no export, ...
        DamagedCheckpointError: a byte of what is exported, or the size of any file, is not as it was written.
        StateMismatchError: `source` is not what the run was begun with.
        UnsupportedStateError: a tensor of a dtype that safetensors files do not have.
        ExportError: there is no room, or what is read back is not what was written.
        RankFailedError: another rank failed.
    """
    wish = Wish(
        source, weights.rstrip("."), dtype, max_shard_size, partial, source_mapper, mapper, named, merge, adapter
    )
    with ExitStack() as stack:
        found = _Export(Path(checkpoint), Path(target), world or SingleWorld(), watch)
        found.look(stack, wish, side_files)
        return found.write()


def is_exported(checkpoint: Path, target: Path) -> bool:
    """Whether `target` is the whole model of this very checkpoint, as it is stored, with all of its files."""
    record, identity = read_export(target), identity_of(checkpoint)
    if record == identity:  # of the first form, which had one file
        return (target / SINGLE_FILE).is_file()
    as_stored = {**identity, "weights": MODEL, "dtype": None}
    return all(record.get(name, 0) == value for name, value in as_stored.items()) and is_whole(target, record)


class _Export:
    """One export. Every method but those that `_together` runs is called by all ranks together."""

    def __init__(self, checkpoint: Path, target: Path, world: World, watch: Watch) -> None:
        self._checkpoint, self._target, self._world, self._watch = checkpoint, target, world, watch
        self._is_main = world.rank == 0
        self._folder = target

    def look(self, stack: ExitStack, wish: Wish, side_files: str | Path | None) -> None:
        """Find out what is written, and whether that can be."""

        def work() -> None:
            if wish.dtype not in (None, *get_args(Dtype)) or wish.max_shard_size < 1:
                raise ConfigError(f"dtype must be one of {', '.join(get_args(Dtype))}, and max_shard_size at least 1")
            check_target(self._target)
            if self._target.resolve().is_relative_to(self._checkpoint.resolve()):
                raise ConfigError(f"export to {self._target}: nobody writes into a checkpoint; choose another folder")
            self._dtype = wish.dtype
            self._beside = side_files_of(self._checkpoint, side_files)
            self._selection = select_any(stack, self._checkpoint, wish)

        self._together("looking", work)

    def write(self) -> Exported:
        """Write all files, and let the folder appear."""
        done = self._selection
        try:
            # Where the target is a folder is for the main process to say: it makes the one that all write to.
            self._folder = self._together("making the folder", self._begin)[0]
            told = self._together("writing tensors", self._write_tensors)
            tensors = {name: file for own in told for name, file in own.items()}
            files = self._together("completing the folder", lambda: self._complete(tensors))[0]
        finally:
            if self._is_main and (self._folder != self._target or self._target.is_dir()):
                give_up(self._folder, self._target)
        return Exported(done.step, done.identity["run"], sum(map(len, done.files.values())), files, done.tied)

    def _begin(self) -> Path:
        if not self._is_main:
            return self._folder
        self._folder = begin(self._target)
        free = free_bytes(self._folder)
        if free is not None and free < self._selection.size:
            raise ExportError(f"export to {self._target}: it needs {self._selection.size} bytes, and {free} are free")
        return self._folder

    def _write_tensors(self) -> dict[str, WrittenFile]:
        """This rank's files."""
        chosen = self._selection
        own = list(chosen.files)[self._world.rank :: self._world.size]
        total, done, lost = sum(one.kind.size for name in own for one in chosen.files[name]), 0, Counter[str]()

        def advance(count: int) -> None:
            nonlocal done
            done += count
            self._watch(done, total)

        # Equal weights should be equal files: which checkpoint they are of stands in the record. What is left out as
        # tied stands where Hugging Face has it: here if there is one file, else in the index.
        metadata = {**(chosen.tied if len(chosen.files) == 1 else {}), "format": "pt"}
        written = {}
        for name in own:
            tensors = chosen.files[name]
            head = header([one.kind for one in tensors], metadata)
            path = self._folder / scratch_name(name)
            written[name] = write_file(path, head, tensors, advance, lambda key, count: lost.update({key: count}))
        for origin in {one.origin for name in own for one in chosen.files[name]}:
            origin.check_frozen()
        if lost.total():
            name, count = lost.most_common(1)[0]
            logger.warning(
                "%d numbers are too large for %s and became infinite, %d of them in %s; bfloat16 holds them",
                *(lost.total(), self._dtype, count, name),
            )
        return written

    def _complete(self, tensors: dict[str, WrittenFile]) -> dict[str, WrittenFile]:
        if not self._is_main:
            return {}
        chosen, folder = self._selection, self._folder
        files = {name: tensors[name] for name in chosen.files}
        if len(files) > 1:
            kinds = {name: [one.kind for one in outgoing] for name, outgoing in chosen.files.items()}
            text = index_text(kinds, chosen.tied).encode()
            files[INDEX_FILE] = write_file(folder / scratch_name(INDEX_FILE), text, ())
        files |= copy_side_files(self._beside, folder, self._target, self._dtype)
        record = {**chosen.identity, "tied": chosen.tied, "files": {name: asdict(one) for name, one in files.items()}}
        finish(folder, self._target, files, record)
        return files

    def _together(self, doing: str, work: Callable[[], T]) -> list[T]:
        """Do it on all ranks. Damage that one of them finds is damage for all."""

        def tried() -> tuple[T | None, DamagedCheckpointError | None]:
            try:
                return work(), None
            except DamageFoundError as error:
                return None, DamagedCheckpointError(f"{self._checkpoint} is damaged and not exported: {error}")
            except DamagedCheckpointError as error:
                return None, error
            except OSError as error:
                if isinstance(error, KeepstepError):
                    raise
                raise ExportError(f"export to {self._target} failed: {error}") from error

        told = told_by_all(self._world, f"exporting {self._checkpoint} to {self._target} ({doing})", tried)
        for _, damage in told:
            if damage is not None:
                raise damage
        return [value for value, _ in told]  # type: ignore[misc]
