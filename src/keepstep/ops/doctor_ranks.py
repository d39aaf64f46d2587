"""Whether the ranks of a launch see each other's files: through files alone, since no rank may be asked otherwise."""

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from keepstep.ops.doctor_scratch import PREFIX
from keepstep.plan.doctor_facts import Shared
from keepstep.storage.local import remove_tree

WAIT_SECONDS = 30.0
# Signs of an earlier launch that had the same address are older than this, by the clock of the file system.
_RECENT_SECONDS = 120.0
_LAUNCH = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "SLURM_STEP_ID")


@dataclass(frozen=True)
class Launched:
    """This rank, of how many, and a name that all ranks of the launch have in common."""

    rank: int
    size: int
    name: str


def launched(environment: Mapping[str, str]) -> Launched | None:
    """What torchrun says of this process; None without it, or when it is alone."""
    rank, size = environment.get("RANK", ""), environment.get("WORLD_SIZE", "")
    if not rank.isdecimal() or not size.isdecimal() or int(size) < 2:
        return None
    name = re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(environment.get(key, "") for key in _LAUNCH))
    return Launched(int(rank), int(size), name)


def probe_ranks(folder: Path, launch: Launched, seconds: float = WAIT_SECONDS) -> Shared:
    """Leave a sign and look for those of the others; then tell rank 0 what was seen. Every rank calls it.

    Args:
        folder: the folder that they should share.
        launch: who this is.
        seconds: how long to wait for others.

    Raises:
        OSError: nothing can be written there.
    """
    meeting = folder / f"{PREFIX}ranks-{launch.name}"
    with suppress(FileExistsError):
        meeting.mkdir()
    own = meeting / f"here-{launch.rank}"
    own.write_text("")
    others = [rank for rank in range(launch.size) if rank != launch.rank]
    started = time.monotonic()
    seen = _await(others, lambda rank: _is_recent(meeting / f"here-{rank}", own), seconds)
    if launch.rank:
        if 0 in seen:
            (meeting / f"saw-{launch.rank}").write_text("")
        # Rank 0 deletes the folder when it has what it needs; one that it never sees goes with its own host.
        if not _await([0], lambda _: not own.exists(), seconds):
            remove_tree(meeting)
        return Shared(launch.size, () if 0 in seen else (0,), time.monotonic() - started)
    told = _await(seen, lambda rank: _is_recent(meeting / f"saw-{rank}", own), seconds / 2)
    remove_tree(meeting)
    return Shared(launch.size, tuple(rank for rank in others if rank not in told), time.monotonic() - started)


def _await(ranks: Iterable[int], is_there: Callable[[int], bool], seconds: float) -> list[int]:
    """Of these ranks those that `is_there` came to hold of."""
    left, found, deadline = list(ranks), list[int](), time.monotonic() + seconds
    while True:
        found += [rank for rank in left if is_there(rank)]
        left = [rank for rank in left if rank not in found]
        if not left or time.monotonic() > deadline:
            return sorted(found)
        time.sleep(0.02)


def _is_recent(path: Path, own: Path) -> bool:
    try:
        return abs(os.stat(path).st_mtime - os.stat(own).st_mtime) < _RECENT_SECONDS
    except OSError:
        return False
