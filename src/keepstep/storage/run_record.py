"""Reads a checkpoint's run.json. Writing it is `provenance`'s."""

import json
import os
from pathlib import Path
from typing import Any

from keepstep.plan import layout


def read_record(checkpoint: Path) -> dict[str, Any]:
    """A checkpoint's run record; empty when it is missing or damaged."""
    try:
        with open(f"{checkpoint}{os.sep}{layout.RUN_RECORD}", "rb") as file:
            record = json.loads(file.read())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
