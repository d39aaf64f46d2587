"""Reads a checkpoint's run.json. Writing it is `provenance`'s."""

import json
import os
from pathlib import Path
from typing import Any

from keepstep.plan import layout
from keepstep.storage.plain import read_plain

_MAX_RECORD = 64 * 1024 * 1024


def read_record(checkpoint: Path) -> dict[str, Any]:
    """A checkpoint's run record; empty when it is missing, damaged or no plain file."""
    try:
        record = json.loads(read_plain(f"{checkpoint}{os.sep}{layout.RUN_RECORD}", _MAX_RECORD))
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}
