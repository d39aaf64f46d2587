"""Makes one file of the parts of a job, with the rows in the order of the input."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from keepstep.errors import ConfigError, DamagedOutputsError
from keepstep.ops.outputs.look import Outputs, look
from keepstep.ops.outputs.merge_arrays import merge_npy, merge_safetensors
from keepstep.ops.outputs.merge_rows import merge_lines, merge_parquet
from keepstep.plan.coverage import merge_order
from keepstep.storage.local import make_folders, sync_folder

_SHOWN = 5
Progress = Callable[[int, int], object]
_MERGE = {
    "jsonl": merge_lines,
    "parquet": merge_parquet,
    "npy": merge_npy,
    "safetensors": merge_safetensors,
}


def merge(
    folder: Path, target: Path, *, partial: bool = False, on_rows: Progress = lambda done, total: None
) -> Outputs:
    """Write all rows of a job into one file. It appears when it is whole.

    Args:
        folder: of the parts.
        target: the file; the end of its name (.gz, .zst) says how JSON lines are compressed.
        partial: also where the job has not ended: what is committed.
        on_rows: told of the progress: rows that are done, and of all.

    Raises:
        CheckpointNotFoundError, CouldNotLookError: as of `look`.
        ConfigError: the job has not ended, or the target is there.
        DamagedOutputsError: parts are missing, or hold a position twice.
    """
    found = look(folder)
    if not found.complete and not partial:
        shards = f" ({'; '.join(found.open_shards[:_SHOWN])})" if found.open_shards else ""
        raise ConfigError(f"{folder}: the job has not ended{shards}; --partial merges what is committed so far")
    if target.exists():
        raise ConfigError(f"{target} is there already; take another name")
    problems = [*(f"{name} is gone" for name in found.missing), *found.problems, *found.coverage_problems]
    if problems:
        raise DamagedOutputsError(f"{folder}: {'; '.join(problems[:3])}; `keepstep outputs verify` says more")
    parts = [part for part in found.parts if not part.is_errors]
    make_folders(target.absolute().parent)
    scratch = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        order = _told(merge_order(parts), on_rows, found.rows)
        _MERGE[found.format]([folder / part.name for part in parts], order, scratch, target)
        with scratch.open("rb") as file:
            os.fsync(file.fileno())
        scratch.rename(target)
    finally:
        scratch.unlink(missing_ok=True)
    sync_folder(target.absolute().parent)
    return found


def _told(order: Iterator[tuple[int, int]], on_rows: Progress, total: int) -> Iterator[tuple[int, int]]:
    done = 0
    for index, count in order:
        yield index, count
        done += count
        on_rows(done, total)
