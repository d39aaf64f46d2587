"""The hidden folder that `keepstep doctor` works in, and what earlier ones have left of theirs."""

import json
import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from keepstep.plan.lock import Claim, Process, judge
from keepstep.storage.local import remove_tree
from keepstep.storage.process import lives, this_process

logger = logging.getLogger("keepstep")

PREFIX = ".keepstep-doctor-"
_OWNER = "owner.json"
# On other hosts, where nobody can ask whether a process lives; no examination takes that long.
_LEFT_SECONDS = 3600.0


@contextmanager
def scratch_folder(folder: Path) -> Iterator[Path]:
    """A folder to work in; it is deleted at the end, whatever happens. What dead ones have left goes first.

    Raises:
        OSError: it cannot be made.
    """
    scratch = folder / f"{PREFIX}{secrets.token_hex(8)}"
    try:
        scratch.mkdir()
        (scratch / _OWNER).write_text(json.dumps(asdict(this_process())))
        _sweep(folder, (scratch / _OWNER).stat().st_mtime)
        yield scratch
    finally:
        _remove(scratch)


def _sweep(folder: Path, now: float) -> None:
    for name in os.listdir(folder):
        if name.startswith(PREFIX) and _is_left(folder / name, now):
            _remove(folder / name)


def _is_left(scratch: Path, now: float) -> bool:
    """Whether nobody works in it any more. `now`: by the clock of the file system."""
    try:
        silent = now - scratch.stat().st_mtime
    except OSError:
        return False
    try:
        owner = Process(**json.loads((scratch / _OWNER).read_text()))
    except (OSError, ValueError, TypeError):
        owner = None
    return judge(
        owner, this_process(), lives=owner is not None and lives(owner), silent=silent, lease=_LEFT_SECONDS
    ) is (Claim.GONE)


def _remove(scratch: Path) -> None:
    try:
        remove_tree(scratch)
    except OSError as error:
        logger.warning("could not delete %s: %s", scratch, error)
