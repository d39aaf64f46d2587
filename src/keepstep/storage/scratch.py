"""Temporary folders that do not stay when their process is killed: the next one that makes some takes them away."""

import shutil
from pathlib import Path
from tempfile import gettempdir, mkdtemp

from keepstep.storage.process import lives, neighbour, this_process


def make_scratch(prefix: str, parent: Path | None = None) -> Path:
    """Make a temporary folder, and delete those of the same prefix whose process has ended.

    Args:
        prefix: what it is for.
        parent: where; None: where temporary files lie.

    Raises:
        OSError: it cannot be made.
    """
    place = Path(gettempdir()) if parent is None else parent
    me = this_process()
    for old in place.glob(f"{prefix}-*-*-*"):
        parts = old.name.removeprefix(f"{prefix}-").split("-")
        if len(parts) == 3 and parts[0].isdecimal() and not lives(neighbour(int(parts[0]), parts[1])):
            shutil.rmtree(old, ignore_errors=True)
    return Path(mkdtemp(prefix=f"{prefix}-{me.pid}-{me.started or 0}-", dir=place))
