"""Writes a report, as a page or as plain facts."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from keepstep.errors import ConfigError, ExportError
from keepstep.plan.report.story import RunStory
from keepstep.storage.local import replace_text


def check_target(path: Path) -> None:
    """Whether a page can go there; asked before the work is done.

    Raises:
        ConfigError: it cannot.
    """
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name a file: --out {path / 'report.html'}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"{path.parent}: there is no such folder; make it first, or choose another --out")


def write_page(path: Path, page: str) -> int:
    """Write the page, whole or not at all. Returns its bytes.

    Raises:
        ExportError: it cannot be written.
    """
    try:
        replace_text(path, page)
    except OSError as error:
        raise ExportError(f"the report cannot be written to {path}: {error}") from error
    return len(page.encode())


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
