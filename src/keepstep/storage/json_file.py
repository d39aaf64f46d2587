"""Reads small files of JSON that anybody may have written."""

import json
from pathlib import Path
from typing import Any

from keepstep.storage.plain import NotPlainError, read_plain

# A Trainer's state has the losses of every step of a long run.
_MOST = 512 * 1024 * 1024


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a plain file; empty where there is none that is readable."""
    try:
        return parse_json(read_plain(path, _MOST))
    except (OSError, NotPlainError):
        return {}


def parse_json(data: bytes) -> dict[str, Any]:
    """A JSON object from its bytes; empty where they are none."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
