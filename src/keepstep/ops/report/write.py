"""Writes a report, as a page or as plain facts."""

import math
import os
import stat
from dataclasses import asdict
from pathlib import Path
from typing import Any

from keepstep.errors import ConfigError, ExportError
from keepstep.plan import layout
from keepstep.plan.report.story import RunStory
from keepstep.storage.local import replace_text
from keepstep.storage.plain import NotPlainError, read_head

# By this in its head a page is known as ours: it is in the template too.
MARK = b'<meta name="generator" content="keepstep report">'
_HEAD = 4096


def check_target(path: Path, run: Path) -> Path:
    """Where a page goes: a link is followed. Asked before the work is done, and again before a file is replaced.

    What is no regular file (a pipe, a terminal) is written into. Of regular files only a page of ours is replaced, or
    an empty one. In the run's folder a page goes directly into it, as `.html`, and nowhere into a checkpoint.

    Raises:
        ConfigError: it cannot go there.
    """
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name a file: --out {path / 'report.html'}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"{path.parent}: there is no such folder; make it first, or choose another --out")
    if is_stream(path):
        return path
    target = Path(os.path.realpath(path))
    _check_place(path, target, run)
    if target.exists() and not _is_replaceable(target):
        raise ConfigError(f"{path} is there and is no page of keepstep report; move it away, or choose another --out")
    return target


def is_stream(path: Path) -> bool:
    """Whether a path, or what it leads to, is there and is no regular file."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def _check_place(path: Path, target: Path, run: Path) -> None:
    folder = Path(os.path.realpath(run))
    if folder in target.parents and (target.parent != folder or target.suffix != ".html"):
        raise ConfigError(f"{path} may be a file of the run; choose another --out, such as {run / 'report.html'}")
    for parent in target.parents:
        is_checkpoint = layout.any_step_of(parent.name) is not None and os.path.lexists(parent / layout.MANIFEST)
        if is_checkpoint or parent.name == layout.KEEPSTEP_FOLDER:
            raise ConfigError(f"{path} would be a file in {parent}, which keepstep minds; choose another --out")


def _is_replaceable(file: Path) -> bool:
    try:
        head = read_head(file, _HEAD)
    except (OSError, NotPlainError) as error:
        raise ConfigError(f"what {file} holds cannot be told: {error}; choose another --out") from None
    return not head or MARK in head


def write_page(path: Path, page: str, run: Path) -> int:
    """Write the page; into a file whole or not at all. Returns its bytes.

    Raises:
        ConfigError: something else has come there meanwhile.
        ExportError: it cannot be written.
    """
    target = check_target(path, run)
    data = page.encode()
    try:
        if is_stream(path):
            with path.open("wb") as stream:
                stream.write(data)
        else:
            replace_text(target, page)
    except OSError as error:
        raise ExportError(f"the report cannot be written to {path}: {error}") from error
    return len(data)


def facts_of(story: RunStory) -> dict[str, Any]:
    """A story as JSON has it: a number that is not finite is null."""
    return {name: _plain(value) for name, value in asdict(story).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(one) for one in value]
    return value
