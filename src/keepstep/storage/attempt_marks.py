"""Marks that attempts of a run leave on its mirrors, under `.keepstep/attempts/<number>/holder.json`.

The highest number has the mirror. Its mark also says on which line the run goes on: the folder that knows that too may
be gone.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from keepstep.plan import layout
from keepstep.storage.line import Line
from keepstep.storage.stores.base import Store

FOLDER = "attempts"
NOTE = "holder.json"
_MAX_NOTE = 100_000


@dataclass(frozen=True)
class AttemptMark:
    """One attempt's mark: who it is, in words, and the line of the run."""

    holder: str
    line: Line | None = None

    def to_bytes(self) -> bytes:
        line = None if self.line is None else {"step": self.line.step, "attempt": self.line.attempt}
        return json.dumps({"holder": self.holder, "line": line}).encode()


def place_of_marks(prefix: str) -> str:
    """Where the marks of a run lie in a store."""
    place = f"{layout.KEEPSTEP_FOLDER}/{FOLDER}"
    return f"{prefix}/{place}" if prefix else place


def attempts_in(notes: Iterable[str]) -> list[int]:
    """Numbers of attempts in names below `.keepstep`."""
    parts = (note.split("/") for note in notes)
    numbers = (part[1] for part in parts if len(part) > 1 and part[0] == FOLDER)
    return sorted({int(one) for one in numbers if one.isascii() and one.isdecimal()})


def attempts_on(store: Store, prefix: str) -> list[int]:
    """The same of a store. Raises OSError where it cannot be asked."""
    place = place_of_marks(prefix)
    return attempts_in(f"{FOLDER}/{one.name[len(place) + 1 :]}" for one in store.list(place))


def read_attempt(store: Store, prefix: str, number: int) -> AttemptMark | None:
    """The mark of an attempt; None where it is none. Raises OSError where the store cannot be asked."""
    try:
        found = json.loads(store.read(f"{place_of_marks(prefix)}/{number}/{NOTE}", _MAX_NOTE))
    except (FileNotFoundError, ValueError):
        return None
    if not isinstance(found, dict):
        return None
    line = found.get("line")
    try:
        read = Line(int(line["step"]), int(line["attempt"])) if isinstance(line, dict) else None
    except (KeyError, TypeError, ValueError):
        read = None
    return AttemptMark(str(found.get("holder", "")), read)
