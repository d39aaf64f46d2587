"""Which checkpoint to go on from: the newest whose bytes are what was written. Times of files do not count."""

import heapq
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from keepstep.errors import DamagedCheckpointError
from keepstep.integrations.lightning.verdict import Judged, judge
from keepstep.storage.named_records import NEEDED_TO_TRAIN, Record, names_in, numbers, records_of

logger = logging.getLogger("keepstep")

_SUFFIX = ".ckpt"
_SHOWN = 3


def newest_verified(folder: str | os.PathLike[str]) -> Path | None:
    """The checkpoint with the most completed steps in a folder of Lightning's that is what was written.

    Damaged ones are passed over with a warning that names them. Files without a record, which keepstep did not write,
    do not count, nor do those with weights only: no training can go on from them.

    Returns:
        None when there is none, and none that is damaged either.

    Raises:
        CouldNotLookError: the folder, or a file in it, cannot be read. That is not taken for an empty one.
        DamagedCheckpointError: there are checkpoints, and none of them is good.
    """
    return newest_in([Path(folder)])


def newest_in(folders: Iterable[Path]) -> Path | None:
    """The same for several folders together."""
    # The highest order first; of a checkpoint that is known to be good the record is kept.
    heap: list[tuple[tuple[int, int], Path, Record | None]] = []
    for path in (path for folder in folders for path in _recorded(folder)):
        if records := records_of(path):
            step, number = max(record.order for record in records)
            heapq.heappush(heap, ((-step, -number), path, None))
    damaged, without_state = [], []
    while heap:
        _, path, record = heapq.heappop(heap)
        if record is not None:
            return path
        verdict = judge(path)
        if verdict.judged is Judged.DAMAGED:
            logger.warning("%s is damaged and passed over: %s", path, verdict.problem)
            damaged.append(f"{path} ({verdict.problem})")
        if verdict.record is not None and verdict.record.manifest is not None:
            if NEEDED_TO_TRAIN not in verdict.record.manifest.components:
                without_state.append(path)
                continue
            step, number = verdict.record.order
            heapq.heappush(heap, ((-step, -number), path, verdict.record))
    if damaged:
        more = f" and {len(damaged) - _SHOWN} more" if len(damaged) > _SHOWN else ""
        raise DamagedCheckpointError(
            f"no checkpoint is good: {', '.join(damaged[:_SHOWN])}{more}. They were changed after they were "
            "written, by a disk or by a program other than keepstep; put a copy in their place, or move them away to "
            "start anew"
        )
    if without_state:
        logger.warning("%s holds weights only; no training can go on from it", without_state[0])
    return None


def unrecorded_in(folder: Path) -> list[Path]:
    """Checkpoints of Lightning's that keepstep did not write.

    Raises:
        CouldNotLookError: it cannot be listed.
    """
    return [folder / name for name in names_in(folder) if name.endswith(_SUFFIX) and not records_of(folder / name)]


def _recorded(folder: Path) -> list[Path]:
    known = numbers(folder)
    return [folder / name for name in names_in(folder) if name in known]
