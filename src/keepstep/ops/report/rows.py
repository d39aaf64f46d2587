"""Reads files of JSON lines that other processes are writing, or have left torn."""

import json
from pathlib import Path
from typing import Any

from keepstep.storage.plain import NotPlainError, read_plain

_MOST = 2 * 1024 * 1024 * 1024


def read_rows(path: Path, notes: list[str], missing: str = "") -> list[dict[str, Any]]:
    """All lines that are objects. What is no row is left out and said.

    Args:
        path: the file.
        notes: what is missing or damaged is added here.
        missing: the note for a file that is not there; empty: none.
    """
    try:
        data = read_plain(path, _MOST)
    except FileNotFoundError:
        notes += [missing] if missing else []
        return []
    except (OSError, NotPlainError) as error:
        notes.append(f"{path.name} cannot be read: {error}")
        return []
    *lines, last = data.split(b"\n")
    rows, bad = [], 0
    for line in lines:
        row = _row(line)
        if row is not None:
            rows.append(row)
        elif line.strip():
            bad += 1
    if bad:
        notes.append(f"{path.name}: {bad:,} of {len(lines):,} lines are no rows; they are left out")
    # A last line without an end is being written, or its writer died: that is no damage.
    row = _row(last)
    return rows if row is None else [*rows, row]


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
