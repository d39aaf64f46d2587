"""Begins a run anew where there is one: that is set aside, nothing of it is deleted, and it happens once."""

import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keepstep.checkpoint.accepted import NAME as ACCEPTED
from keepstep.checkpoint.claim import FolderClaim
from keepstep.dist.agree import agreed
from keepstep.dist.world import World
from keepstep.errors import ResumeError
from keepstep.plan import layout
from keepstep.plan.fresh import acts
from keepstep.storage.exit_note import NAME as EXIT_NOTE
from keepstep.storage.exit_note import read_exit
from keepstep.storage.line import Line, note_line
from keepstep.storage.lineage import FORKS, ORIGIN
from keepstep.storage.local import make_folders, replace_text, sync_folder
from keepstep.storage.save_log import NAME as SAVE_LOG

logger = logging.getLogger("keepstep")

SUBMISSION_VARIABLE = "KEEPSTEP_SUBMISSION"
_OF_SCHEDULERS = (SUBMISSION_VARIABLE, "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
_RECORD = "fresh.json"
# What a run leaves in its folder beside checkpoints; all else there is somebody else's.
_OWN = ("metrics.jsonl", "scores.jsonl", SAVE_LOG)
_OWN_INSIDE = ("quarantine", "ledger", EXIT_NOTE, ACCEPTED, FORKS, ORIGIN)


def submission() -> str | None:
    """What tells this submission of the job from others, also when the scheduler runs it again. None: nothing does."""
    return next((os.environ[name] for name in _OF_SCHEDULERS if os.environ.get(name)), None)


def begin_anew(folder: Path, claim: FolderClaim, world: World) -> None:
    """Set aside the run that lies in a folder, unless this very request has begun it. Collective.

    Raises:
        ResumeError: it cannot be moved; the same on all ranks.
    """
    with agreed(world, f"setting the run in {folder} aside", ResumeError):
        if world.rank == 0:
            _begin_anew(folder, claim)


def _begin_anew(folder: Path, claim: FolderClaim) -> None:
    record, own = _read(folder), submission()
    if not acts(record, own, finished=read_exit(folder).get("outcome") == "finished"):
        when = record.get("time") if record else None
        logger.warning(
            "--fresh was acted on already (%s), so the run that it began goes on. To begin once more, set %s to "
            "another value",
            when,
            SUBMISSION_VARIABLE,
        )
        return
    target = folder / layout.SET_ASIDE / f"run-{claim.attempt}"
    moved = 0
    for path in _content(folder):
        if not moved:
            make_folders(target)
        claim.confirm()
        path.rename(target / path.name)
        moved += 1
    if moved:
        sync_folder(target)
        sync_folder(folder)
        logger.warning("the run that was in %s lies in %s now; this one begins at the first step", folder, target)
    # What mirrors hold of it is of another line from now on.
    note_line(folder, Line(0, claim.attempt))
    note = {"submission": own, "attempt": claim.attempt, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    replace_text(folder / layout.KEEPSTEP_FOLDER / _RECORD, json.dumps(note) + "\n")


def _content(folder: Path) -> Iterator[Path]:
    """What belongs to the run. Oldest checkpoints first: a crash on the way leaves the newest where they are looked
    for."""
    names = sorted(os.listdir(folder))
    steps = sorted(step for name in names if (step := layout.step_of(name)) is not None)
    for step in steps:
        yield folder / layout.checkpoint_name(step)
    for name in names:
        if layout.attempt_of(name) is not None or name in _OWN:
            yield folder / name
    for name in _OWN_INSIDE:
        if os.path.lexists(path := folder / layout.KEEPSTEP_FOLDER / name):
            yield path


def _read(folder: Path) -> dict[str, Any] | None:
    try:
        record = json.loads((folder / layout.KEEPSTEP_FOLDER / _RECORD).read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return record if isinstance(record, dict) else None
