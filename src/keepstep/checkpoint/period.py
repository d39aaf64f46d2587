"""At which steps a job saves. Where a clock has a say, it is the main process's, and all ranks hear of it.

That needs no meeting of its own: what `is_due` says travels with what ranks tell each other after every step.
"""

import logging
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from keepstep.config.checkpointing import CheckpointingConfig, Period
from keepstep.dist.world import World
from keepstep.plan.advice import Costs, advise, next_period, spoken_steps, writing_steps
from keepstep.plan.durations import spoken
from keepstep.plan.run_history import RECENT, Failures, count_in, failures_of, mean_between, measured_of
from keepstep.plan.schedule import is_save_due
from keepstep.storage.save_log import SaveLog

logger = logging.getLogger("keepstep")

# `auto` knows nothing at first: the first saves come this often, or as often as a crash may cost.
FIRST_STEPS = 10
# Saves that are measured before it is trusted; the first one makes files and takes memory.
_ENOUGH = 2


class SavePeriod(Protocol):
    """What the main process says counts."""

    def begin(self, step: int, attempt: int) -> None:
        """The job goes on from `step`."""

    def is_due(self, step: int, total_steps: int | None) -> bool:
        """Whether `step` completed steps call for a save."""

    def acted(self, step: int) -> None:
        """This step's save was begun."""

    def left_out(self) -> bool:
        """A save that is due was left out. Returns whether that is news; the same on all ranks."""

    def learn(self, row: Mapping[str, Any]) -> None:
        """A save has ended; its line of `saves.jsonl`."""


def period_of(config: CheckpointingConfig, folder: Path, world: World) -> SavePeriod:
    """The period that is configured."""
    if config.period_minutes is not None:
        return MinutesPeriod(config.period_minutes, world)
    if config.period_steps == "auto":
        return AutoPeriod(config.max_loss_minutes, folder, world)
    assert config.period_steps is not None
    return StepsPeriod(config.period_steps)


class StepsPeriod:
    """Every so many steps, counted from the first; the same on all ranks without a word."""

    def __init__(self, period: Period) -> None:
        self._period = period

    def begin(self, step: int, attempt: int) -> None:
        """Nothing: steps count from 0."""

    def is_due(self, step: int, total_steps: int | None) -> bool:
        return is_save_due(step, total_steps, self._period)

    def acted(self, step: int) -> None:
        """Nothing."""

    def left_out(self) -> bool:
        """Each is a save of its own: the next comes a period later."""
        return True

    def learn(self, row: Mapping[str, Any]) -> None:
        """Nothing."""


class _SinceTheLast:
    """Counts steps and time from the end of the last save; one that was left out stays due."""

    def __init__(self) -> None:
        self._is_left_out = False
        self._step, self._at = 0, monotonic()

    def acted(self, step: int) -> None:
        self._step, self._at = step, monotonic()
        self._is_left_out = False

    def left_out(self) -> bool:
        """It stays due, and is made as soon as it can be."""
        is_news, self._is_left_out = not self._is_left_out, True
        return is_news


class MinutesPeriod(_SinceTheLast):
    """At the first step that ends so many minutes after the last save."""

    def __init__(self, minutes: float, world: World) -> None:
        super().__init__()
        self._seconds, self._world = minutes * 60, world

    def begin(self, step: int, attempt: int) -> None:
        self.acted(step)

    def is_due(self, step: int, total_steps: int | None) -> bool:
        if self._world.rank or step <= self._step:
            return False
        return step == total_steps or monotonic() - self._at >= self._seconds

    def learn(self, row: Mapping[str, Any]) -> None:
        """Nothing."""


class AutoPeriod(_SinceTheLast):
    """As often as it costs least, by what saves and failures of this run have cost, and so often that a crash costs no
    more than `max_loss_minutes`.

    Attributes:
        steps: between two saves, as it is now.
    """

    def __init__(self, max_loss_minutes: float, folder: Path, world: World) -> None:
        super().__init__()
        self._minutes, self._log, self._world = max_loss_minutes, SaveLog(folder), world
        self._attempt, self._failures = 0, Failures()
        self._recent: deque[Mapping[str, Any]] = deque(maxlen=RECENT)
        self.steps = FIRST_STEPS
        self._may_adapt = False
        self._shortest, self._longest, self._each = 0.0, max_loss_minutes * 60, 0.0
        self._began = self._at

    def begin(self, step: int, attempt: int) -> None:
        """Go on with the period that the attempt before had, and with what it has measured."""
        self._attempt, self._began = attempt, monotonic()
        if self._world.rank == 0:
            self._recall(attempt)
        self.acted(step)

    def _recall(self, attempt: int) -> None:
        try:
            rows = self._log.rows()
        except OSError as error:
            logger.warning("what earlier saves took is not known: %s", error)
            return
        self._failures = failures_of([*rows, {"outcome": "started", "attempt": attempt}])
        self._recent.extend([row for row in rows if row.get("outcome") == "saved"][-RECENT:])
        changes = [steps for row in rows if row.get("outcome") == "period" and (steps := count_in(row, "to"))]
        if changes:
            self.steps = changes[-1]
        # At the first step, and not now: a start that has nothing to do changes nothing.
        self._may_adapt = True

    def is_due(self, step: int, total_steps: int | None) -> bool:
        if self._world.rank or step <= self._step:
            return False
        if self._may_adapt:
            self._adapt(step)
        # Steps may take longer than they did: the next one would end too late.
        passed = monotonic() - self._at
        is_late = passed + self._each > self._longest and passed >= self._shortest
        return step == total_steps or step - self._step >= self.steps or is_late

    def learn(self, row: Mapping[str, Any]) -> None:
        self._recent.append(row)
        self._adapt(int(row["step"]))

    def _adapt(self, step: int) -> None:
        self._may_adapt = False
        found = measured_of(list(self._recent))
        if found.saves < _ENOUGH or not found.step_seconds or found.save_seconds is None:
            return
        costs = Costs(
            found.step_seconds, found.save_seconds, found.commit_delay_seconds, mtbf_seconds=self._mtbf_seconds()
        )
        advice = advise(costs, self._minutes)
        whole = costs.save_seconds + costs.commit_delay_seconds
        self._each, self._longest = costs.step_seconds, self._minutes * 60 - whole
        # Earlier than that saves take more time than steps, or wait for the one before.
        self._shortest = max(costs.save_seconds, costs.commit_delay_seconds)
        before, self.steps = self.steps, next_period(self.steps, advice.period_steps, writing_steps(costs))
        if self.steps != before:
            reason = "; ".join(advice.reasons)
            if self.steps < advice.period_steps:
                reason = f"on the way to {spoken_steps(advice.period_steps)}: {reason}"
            elif self.steps > advice.period_steps:
                reason = (
                    f"a tenth more than {spoken_steps(advice.period_steps)}, since writing may take longer: {reason}"
                )
            logger.info(
                "saves come every %s from now on (%s), before every %d: %s",
                spoken_steps(self.steps),
                spoken(self.steps * costs.step_seconds),
                before,
                reason,
            )
            self._log.period_changed(step, self._attempt, before, self.steps, reason)

    def _mtbf_seconds(self) -> float | None:
        return mean_between(self._failures.running_seconds + monotonic() - self._began, self._failures.failures)
