"""Scores each committed checkpoint once, as it appears. Several of these share the work, and any may be killed."""

import contextlib
import logging
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from keepstep.errors import CheckpointNotFoundError, CouldNotLookError, DamagedCheckpointError, MirrorError
from keepstep.ops.scoring.holding import Holding
from keepstep.ops.scoring.places import Place
from keepstep.ops.scoring.runner import Bounds, Function, Result, call_function, run_scorer
from keepstep.plan.score_command import ScoreCommand
from keepstep.plan.scores import FAILED, FINAL, MARKED, SCORED, Score, to_line
from keepstep.plan.watch import MOST_DEATHS, Order, Retries, Scorable, Unit, WatchPlan, failures, plan_watch
from keepstep.storage.local import make_folders
from keepstep.storage.process import this_process
from keepstep.storage.scoring.claims import FOLDER, HeldClaim, claimed
from keepstep.storage.scoring.scores import ScoreFile, add_score

logger = logging.getLogger("keepstep")

_PACKAGES = ("keepstep", "torch", "transformers")
_LOGS = f"{FOLDER}/logs"
# What was gone when it was to be read is not looked for again so soon: a listing may lag behind.
_GONE_SECONDS = 60.0
_AWAY_SECONDS = 30.0
# A row that the disk does not take is tried again: it may have cost an hour.
_PAUSES = (1.0, 5.0, 30.0)


@dataclass(frozen=True)
class WatchOptions:
    """How a watcher works.

    Attributes:
        order: which checkpoint comes first.
        every_seconds: how often it looks for new ones.
        until: "finished": it ends when the run is finished and all is scored; "once": when all that is there now is;
            "never".
        retries: of failures.
        bounds: of each scorer.
        hold_bytes: what has not been scored is held back from retention, as far as it takes no more than this.
        respects_marks: whether a `.scored` file in a checkpoint counts as scored.
        retries_failed: whether what has failed for good before is tried anew.
    """

    order: Order = "newest"
    every_seconds: float = 5.0
    until: str = "finished"
    retries: Retries = field(default_factory=Retries)
    bounds: Bounds = field(default_factory=Bounds)
    hold_bytes: int = 0
    respects_marks: bool = True
    retries_failed: bool = False


DEFAULTS = WatchOptions()


@dataclass
class WatchResult:
    """What this watcher did: rows of numbers, final failures, and checkpoints that vanished before their turn.

    Attributes:
        failed_before: checkpoints and sets that have failed for good and that this watcher did not try.
    """

    scored: int = 0
    failed: int = 0
    gone: int = 0
    failed_before: int = 0


class Watcher:
    """Args:
    place: where checkpoints are.
    folder: where scores go, and what watchers share: the run's folder, usually.
    commands: how each set is scored.
    options: how this works.
    functions: by set, what scores it in this process, in place of its command.
    """

    def __init__(
        self,
        place: Place,
        folder: Path,
        commands: Sequence[ScoreCommand],
        options: WatchOptions = DEFAULTS,
        functions: Mapping[str, Function] | None = None,
    ) -> None:
        self._place, self._folder, self._options = place, folder, options
        self._commands = {command.set: command for command in commands}
        self._functions = functions or {}
        self._result = WatchResult()
        me = this_process()
        self._name = f"{me.host}:{me.pid}"
        self._versions = {"python": platform.python_version(), **_versions()}
        self._told = ""
        self._scores = ScoreFile(folder)
        # By digest: not before that time by the monotonic clock.
        self._later: dict[str, float] = {}
        self._away: set[str] = set()
        self._only: frozenset[str] | None = None
        self._reopened: tuple[Score, ...] = ()

    def run(self, sleep: Callable[[float], None] = time.sleep) -> WatchResult:
        """Score until the end that the options say.

        Raises:
            CouldNotLookError: the place cannot be read at the start; later that is a warning.
            OSError: scores cannot be written.
        """
        options = self._options
        self._reopened = tuple(row for row in self._scores.last_words().values() if self._reopens(row))
        if options.until == "once":
            # What comes later is another one's: a run may save faster than this scores.
            self._only = frozenset(one.digest for one in self._place.checkpoints())
        # Scores of its own: the thread must not share what the other keeps.
        holding = Holding(
            self._place, lambda: self._plan(ScoreFile(self._folder)), options.hold_bytes, options.every_seconds
        )
        try:
            holding.start()
            self._run(sleep, holding)
        finally:
            holding.end()
        self._result.failed_before = failures(self._scores.last_words(), tuple(self._commands)) - self._result.failed
        return self._result

    def _run(self, sleep: Callable[[float], None], holding: Holding) -> None:
        has_looked, every = False, self._options.every_seconds
        while True:
            try:
                is_over = self._is_over()
                plan = self._plan(self._scores)
                has_looked = True
                holding.follow(plan)
            except CouldNotLookError as error:
                if not has_looked:
                    raise
                logger.warning("%s; looking again in %g seconds", error, every)
                sleep(every)
                continue
            marked = [self._mark(unit) for unit in plan.marked]
            if any(marked) or self._score_one(plan):
                continue
            later = self._seconds_left()
            if plan.is_done and is_over and later is None:
                return
            self._tell_of_waiting(plan)
            sleep(min(left for left in (every, plan.wait_seconds, later) if left is not None))

    def _is_over(self) -> bool:
        until = self._options.until
        return until == "once" or (until == "finished" and self._place.is_finished())

    def _plan(self, scores: ScoreFile) -> WatchPlan:
        now, options = time.monotonic(), self._options
        there = [one for one in self._place.checkpoints() if self._later.get(one.digest, now) <= now]
        if self._only is not None:
            there = [one for one in there if one.digest in self._only]
        return plan_watch(
            there,
            tuple(self._commands),
            scores.last_words(),
            time.time(),
            order=options.order,
            retries=options.retries,
            respects_marks=options.respects_marks,
            reopened=self._reopened,
        )

    def _score_one(self, plan: WatchPlan) -> bool:
        """Score the first that no other watcher has. Returns whether there was one."""
        for unit in plan.due:
            with claimed(self._folder, unit.key) as claim:
                if claim is None or not self._is_still_due(unit):
                    continue
                self._score(unit, claim)
                return True
        return False

    def _is_still_due(self, unit: Unit) -> bool:
        """Asked with the claim in hand: another watcher may have scored it since."""
        row = self._scores.last_words().get(unit.key)
        return row is None or row in self._reopened or (row.outcome not in FINAL and row.tries == unit.tries)

    def _reopens(self, row: Score) -> bool:
        options = self._options
        return (row.outcome == FAILED and options.retries_failed) or (
            row.outcome == MARKED and not options.respects_marks
        )

    def _score(self, unit: Unit, claim: HeldClaim) -> None:
        checkpoint, command = unit.checkpoint, self._commands[unit.set]
        if claim.deaths >= MOST_DEATHS:
            problem = f"{claim.deaths} watchers died while they scored it"
            self._add(unit, Result({}, problem, 0.0, command.parts), FAILED)
            return
        try:
            with self._place.reading(checkpoint) as path:
                result = self._run_scorer(unit, path)
            is_there = self._is_still_there(checkpoint)
        except CheckpointNotFoundError as error:
            self._leave(unit, str(error), gone=True)
            return
        except (CouldNotLookError, MirrorError) as error:
            # Of the place, not of the checkpoint: it is no try.
            self._leave(unit, str(error), gone=False)
            return
        except DamagedCheckpointError as error:
            result, is_there = Result({}, str(error), 0.0, command.parts), True
        if not is_there:
            self._leave(unit, "it was deleted or replaced while it was scored", gone=True)
        elif not claim.is_held:
            logger.warning("%s on %s: another watcher has taken over meanwhile", checkpoint.name, unit.set)
        elif result.problem:
            self._add(unit, result, self._options.retries.outcome(unit.tries + 1))
        else:
            self._add(unit, result, SCORED)

    def _is_still_there(self, checkpoint: Scorable) -> bool:
        """Whether what was scored is what the row will name. A place that is away for a while costs no score."""
        for pause in _PAUSES:
            try:
                return self._place.has(checkpoint)
            except CouldNotLookError as error:
                logger.warning("%s; looking again in %g seconds", error, pause)
                time.sleep(pause)
        return True  # it was held all the time

    def _run_scorer(self, unit: Unit, path: Path) -> Result:
        command = self._commands[unit.set]
        logger.info("scoring %s on %s", unit.checkpoint.name, unit.set)
        if unit.set in self._functions:
            return call_function(self._functions[unit.set], command, path)
        logs = self._folder / _LOGS
        make_folders(logs)
        log = logs / f"{unit.checkpoint.name}.{unit.checkpoint.digest[:8]}.{unit.set}.log"
        return run_scorer(command, path, unit.checkpoint.step, self._options.bounds, log)

    def _mark(self, unit: Unit) -> bool:
        logger.info("%s was scored before (it holds a .scored file)", unit.checkpoint.name)
        return self._write(self._row(unit, Result({}, "", 0.0, ()), MARKED, tries=0))

    def _add(self, unit: Unit, result: Result, outcome: str) -> None:
        name = f"{unit.checkpoint.name} on {unit.set}"
        if not self._write(self._row(unit, result, outcome, tries=unit.tries + 1)):
            logger.info("%s was scored by another watcher meanwhile", name)
        elif outcome == SCORED:
            self._result.scored += 1
            numbers = ", ".join(f"{metric} {value:.6g}" for metric, value in result.metrics.items())
            logger.info("scored %s: %s (%.1f s)", name, numbers, result.seconds)
        elif outcome == FAILED:
            self._result.failed += 1
            logger.error("%s could not be scored: %s", name, result.problem)
        else:
            pause = self._options.retries.pause_after(unit.tries + 1)
            logger.warning("%s could not be scored: %s; again in %g seconds", name, result.problem, pause)

    def _row(self, unit: Unit, result: Result, outcome: str, *, tries: int) -> Score:
        return Score(
            unit.checkpoint.step,
            unit.checkpoint.digest,
            unit.set,
            outcome,
            checkpoint=unit.checkpoint.name,
            metrics=result.metrics,
            problem=result.problem,
            seconds=round(result.seconds, 3),
            command=result.command,
            versions=self._versions,
            tries=tries,
            time=round(time.time(), 3),
            watcher=self._name,
        )

    def _write(self, row: Score) -> bool:
        reopens = any(row.key == one.key for one in self._reopened)
        for pause in _PAUSES:
            try:
                return add_score(self._folder, row, reopens=reopens)
            except OSError as error:
                logger.warning(
                    "the score of %s could not be written (%s); trying again: %s", row.checkpoint, error, to_line(row)
                )
                time.sleep(pause)
        return add_score(self._folder, row, reopens=reopens)

    def _leave(self, unit: Unit, why: str, *, gone: bool) -> None:
        """Leave a checkpoint for now: a listing may lag behind, and a store may come back."""
        self._later[unit.checkpoint.digest] = time.monotonic() + (_GONE_SECONDS if gone else _AWAY_SECONDS)
        if gone:
            self._result.gone += 1
            logger.info("%s is gone: %s", unit.checkpoint.name, why)
        else:
            logger.warning("%s cannot be read: %s; again in %g seconds", unit.checkpoint.name, why, _AWAY_SECONDS)
            self._away.add(unit.checkpoint.digest)

    def _seconds_left(self) -> float | None:
        """Until the first checkpoint that could not be read for now is looked at again; None without one."""
        now = time.monotonic()
        left = [self._later[digest] - now for digest in self._away if self._later[digest] > now]
        return max(0.0, min(left)) if left else None

    def _tell_of_waiting(self, plan: WatchPlan) -> None:
        """Say what is waited for, when that is another thing than before."""
        if plan.due:
            what = f"other watchers are at work on {len(plan.due)}"
        elif plan.waiting:
            what = f"{len(plan.waiting)} wait for another try"
        elif not self._place.checkpoints():
            what = "no complete checkpoint is there yet"
        else:
            what = "all that is there is scored"
        kind = what.rstrip("0123456789")
        if kind != self._told:
            self._told = kind
            logger.info("%s; waiting (Ctrl-C ends this)", what)


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
