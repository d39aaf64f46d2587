"""Who may write to a mirror: the latest attempt of the run, wherever it runs.

Two machines may hold the same run for a while: one was taken for dead and lives. Each leaves the mark of its attempt
(`storage/attempt_marks.py`); the highest one has the mirror.
"""

import time

from keepstep.errors import RunInUseError
from keepstep.storage.attempt_marks import NOTE, AttemptMark, attempts_on, place_of_marks, read_attempt
from keepstep.storage.line import Line
from keepstep.storage.stores.base import Store

# While bytes are sent, it is asked again after so many seconds.
_AGAIN_SECONDS = 5.0


class Fence:
    """One attempt's right to write to a run's folder in a store.

    Args:
        store, prefix: the folder.
        attempt: the number of this attempt.
        holder: this job, in words.
    """

    def __init__(self, store: Store, prefix: str, attempt: int, holder: str) -> None:
        self._store, self._prefix, self._attempt, self._holder = store, prefix, attempt, holder
        self._asked = float("-inf")

    def take(self, line: Line | None = None) -> Line | None:
        """Take the folder over from earlier attempts.

        Args:
            line: of the run, as its folder here knows it; None where it does not.

        Returns:
            The line that holds: this one, or else the one that the attempt before has noted.

        Raises:
            RunInUseError: another job has this number, or a later one.
            OSError: the store cannot be asked.
        """
        numbers = self._confirmed()
        before = [number for number in numbers if number < self._attempt]
        if line is None and before:
            mark = read_attempt(self._store, self._prefix, before[-1])
            line = mark.line if mark is not None else None
        mark, place = AttemptMark(self._holder, line), place_of_marks(self._prefix)
        if not self._store.create(f"{place}/{self._attempt}/{NOTE}", mark.to_bytes()):
            told = read_attempt(self._store, self._prefix, self._attempt)
            if told is None or told.holder != self._holder:
                raise self._refusal(self._attempt)
        for number in before:
            self._store.remove(f"{place}/{number}", NOTE)
        return line

    def confirm(self) -> None:
        """Ask before something is changed there. Raises as `take`."""
        self._confirmed()

    def glance(self) -> None:
        """The same while bytes are sent, only now and then."""
        if time.monotonic() - self._asked > _AGAIN_SECONDS:
            self._confirmed()

    def _confirmed(self) -> list[int]:
        numbers = attempts_on(self._store, self._prefix)
        self._asked = time.monotonic()
        if numbers and numbers[-1] > self._attempt:
            raise self._refusal(numbers[-1])
        return numbers

    def _refusal(self, number: int) -> RunInUseError:
        mark = read_attempt(self._store, self._prefix, number)
        who = mark.holder if mark is not None else ""
        return RunInUseError(
            f"{self._store.address}: another job writes to this mirror (attempt {number}: {who or '?'}; this is "
            f"attempt {self._attempt}). Nothing more is uploaded; end one of the two jobs"
        )
