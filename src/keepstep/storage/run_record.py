"""Reads a checkpoint's run.json. Writing it is `provenance`'s."""

import json
from pathlib import Path
from typing import Any

from keepstep.plan import layout


def read_record(checkpoint: Path) -> dict[str, Any]:
    """A checkpoint's run record; empty when it is missing or damaged."""
    try:
        record = json.loads((checkpoint / layout.RUN_RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
