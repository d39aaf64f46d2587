"""Reads a checkpoint's run.json. Writing it is `provenance`'s."""

import json
import os
from pathlib import Path
from typing import Any

from keepstep.plan import layout
from keepstep.storage.digest import digest_of_bytes
from keepstep.storage.plain import NotPlainError, read_plain
from keepstep.storage.survey import inspect

MAX_RECORD = 64 * 1024 * 1024


def read_true_record(checkpoint: Path) -> dict[str, Any]:
    """The run record of a checkpoint as it was written; empty when it is not, which the load finds."""
    manifest = inspect(checkpoint, layout.any_step_of(checkpoint.name) or 0).manifest
    record = manifest.files.get(layout.RUN_RECORD) if manifest else None
    try:
        data = read_plain(f"{checkpoint}{os.sep}{layout.RUN_RECORD}", MAX_RECORD)
    except (OSError, NotPlainError):
        return {}
    return parse_record(data) if record is not None and digest_of_bytes(data) == record.digest else {}


def read_record(checkpoint: Path) -> dict[str, Any]:
    """A checkpoint's run record; empty when it is missing, damaged or no plain file."""
    try:
        return parse_record(read_plain(f"{checkpoint}{os.sep}{layout.RUN_RECORD}", MAX_RECORD))
    except (OSError, NotPlainError):
        return {}


def parse_record(data: bytes) -> dict[str, Any]:
    """A run record from its bytes; empty when they are none."""
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}
