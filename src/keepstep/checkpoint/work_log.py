"""How the time of an attempt is divided among steps and saves; `keepstep advise` reads it."""

from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

from keepstep.dist.world import World
from keepstep.storage.process import seconds_since_start
from keepstep.storage.save_log import SaveLog


@dataclass(frozen=True)
class Work:
    """What an attempt did since its last save, or since its first step, until the next one begins.

    Attributes:
        began: when the save began, by the monotonic clock.
        steps, steps_seconds: steps that were made, and how long they took, saves left out.
        busy_steps, busy_seconds: those of them that were made while a checkpoint was written beside them.
        waited_seconds: how long this save had to wait for the one before it.
    """

    began: float
    steps: int = 0
    steps_seconds: float = 0.0
    busy_steps: int = 0
    busy_seconds: float = 0.0
    waited_seconds: float = 0.0

    def waited(self) -> "Work":
        """The save before it was under way when this one came due, and has ended just now."""
        return replace(self, waited_seconds=monotonic() - self.began)

    def row(self, lost_seconds: float | None = None) -> dict[str, float]:
        """Fields of `saves.jsonl`. `lost_seconds`: how long the save held up the job."""
        lost = {} if lost_seconds is None else {"lost_seconds": lost_seconds}
        done = {"steps": self.steps, "steps_seconds": self.steps_seconds}
        busy = {"busy_steps": self.busy_steps, "busy_seconds": self.busy_seconds} if self.busy_steps else {}
        waited = {"waited_seconds": self.waited_seconds} if self.waited_seconds else {}
        return {**lost, **waited, **done, **busy}


class WorkLog:
    """Measures one attempt, by a clock that nobody sets. All ranks may call it, the main process writes.

    The first step is no measure of the others (memory is taken, kernels are compiled), so it counts as a part of the
    start. That is noted when the step is made: an attempt that has nothing to do leaves its folder as it was. A start
    begins with the process, but for the runs after the first one in it.

    Args:
        folder: the run's folder.
        world: the ranks.
    """

    _has_run = False  # in this process

    def __init__(self, folder: Path, world: World) -> None:
        self._log, self._world = SaveLog(folder), world
        self._start: int | None = None
        self._attempt = 0
        self._is_noted = False
        self._step: int | None = None
        self._first: tuple[int, float | None] | None = None
        self._at = self._created = monotonic()
        self._is_first = not WorkLog._has_run
        self._forget()

    def _forget(self) -> None:
        self._steps = self._busy_steps = 0
        self._seconds = self._busy_seconds = 0.0

    def resumed(self, step: int, attempt: int) -> None:
        """This attempt holds the folder and goes on from `step`."""
        self._start, self._attempt = step, attempt

    def claimed(self, attempt: int) -> None:
        """This attempt holds the folder and has saved to it: one that has not resumed notes its start now."""
        if self._start is None and self._first is not None:
            self.resumed(max(0, self._first[0] - 1), attempt)
            self._note_start(self._first[1])

    def step_ended(self, step: int, *, is_busy: bool = False) -> None:
        """`step` steps are done. `is_busy`: a save is under way beside them. The same step may be told of again."""
        now = monotonic()
        if self._step is None:
            WorkLog._has_run = True
            self._first = (step, seconds_since_start() if self._is_first else now - self._created)
            self._note_start(self._first[1])
        elif step >= self._step:
            self._steps += step - self._step
            self._seconds += now - self._at
            if is_busy:
                self._busy_steps += step - self._step
                self._busy_seconds += now - self._at
        self._step, self._at = step, now

    def save_begins(self, step: int, *, is_busy: bool = False) -> Work:
        """Take what was measured until now."""
        self.step_ended(step, is_busy=is_busy)
        work = Work(self._at, self._steps, self._seconds, self._busy_steps, self._busy_seconds)
        self._forget()
        return work

    def save_ended(self) -> None:
        """From now on time is that of steps."""
        self._at = monotonic()

    def ended(self, *, stopped: bool) -> None:
        """The attempt ends without an error, for the first time that this is told."""
        if self._is_noted and self._step is not None:
            work = Work(0.0, self._steps, self._seconds, self._busy_steps, self._busy_seconds)
            self._log.ended(self._step, self._attempt, "stopped" if stopped else "finished", work.row())
            self._is_noted = False

    def _note_start(self, seconds: float | None) -> None:
        if self._start is None or self._world.rank:
            return
        self._is_noted = True
        self._log.started(self._start, self._attempt, seconds, self._world.size)
