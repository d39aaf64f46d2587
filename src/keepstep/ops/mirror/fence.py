"""Who may write to a mirror: the latest attempt of the run, wherever it runs.

Two machines may hold the same run for a while: one was taken for dead and lives. Each leaves the number of its attempt
on the mirror, under `.keepstep/attempts/<number>/holder.json`; the highest one has it.
"""

import json
from collections.abc import Iterable

from keepstep.errors import RunInUseError
from keepstep.plan import layout
from keepstep.storage.stores.base import Store

_FOLDER = f"{layout.KEEPSTEP_FOLDER}/attempts"
_NOTE = "holder.json"
_MAX_NOTE = 100_000


class Fence:
    """One attempt's right to write to a run's folder in a store.

    Args:
        store, prefix: the folder.
        attempt: the number of this attempt.
        holder: this job, in words.
    """

    def __init__(self, store: Store, prefix: str, attempt: int, holder: str) -> None:
        self._store, self._attempt, self._holder = store, attempt, holder
        self._place = f"{prefix}/{_FOLDER}" if prefix else _FOLDER

    def take(self) -> None:
        """Take the folder over from earlier attempts.

        Raises:
            RunInUseError: another job has this number, or a later one.
            OSError: the store cannot be asked.
        """
        self.confirm()
        note = json.dumps({"holder": self._holder}).encode()
        if not self._store.create(self._name(self._attempt), note) and self._told(self._attempt) != self._holder:
            raise self._refusal(self._attempt)
        for number in attempts_in(one.name[len(self._place) + 1 :] for one in self._store.list(self._place)):
            if number < self._attempt:
                self._store.remove(f"{self._place}/{number}", _NOTE)

    def confirm(self) -> None:
        """Ask before something is changed there. Raises as `take`."""
        names = [one.name[len(self._place) + 1 :] for one in self._store.list(self._place)]
        highest = max(attempts_in(names), default=0)
        if highest > self._attempt:
            raise self._refusal(highest)

    def _name(self, number: int) -> str:
        return f"{self._place}/{number}/{_NOTE}"

    def _told(self, number: int) -> str:
        try:
            found = json.loads(self._store.read(self._name(number), _MAX_NOTE))
        except (FileNotFoundError, ValueError):
            return ""
        return str(found.get("holder", "")) if isinstance(found, dict) else ""

    def _refusal(self, number: int) -> RunInUseError:
        return RunInUseError(
            f"{self._store.address}: another job writes to this mirror (attempt {number}: {self._told(number) or '?'}; "
            f"this is attempt {self._attempt}). Nothing more is uploaded; end one of the two jobs"
        )


def attempts_in(names: Iterable[str]) -> list[int]:
    """Numbers of attempts in names below the folder of the notes."""
    found = (name.partition("/")[0] for name in names)
    return sorted({int(one) for one in found if one.isdecimal() and one.isascii()})


def highest_attempt(notes: Iterable[str]) -> int:
    """The highest attempt that is noted, by names below `.keepstep`; 0 without one."""
    head = f"{_FOLDER.rpartition('/')[2]}/"
    return max(attempts_in(one.removeprefix(head) for one in notes if one.startswith(head)), default=0)
