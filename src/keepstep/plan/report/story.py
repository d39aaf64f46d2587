"""The whole of a report: what is told of a run, in the order in which it is told."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from keepstep.config.bounds import Guard
from keepstep.plan.metrics import Mode
from keepstep.plan.report.attempts import Attempt, attempts_of, state_of
from keepstep.plan.report.decider import decider_of
from keepstep.plan.report.events import Event, events_of
from keepstep.plan.report.facts import CheckpointFact, Facts
from keepstep.plan.report.mirrors import Mirror, mirrors_of
from keepstep.plan.report.pace import restart_seconds, seconds_per_step
from keepstep.plan.report.records import RunRecord, record_of
from keepstep.plan.report.saves import SaveCosts, costs_of
from keepstep.plan.report.scoreboard import Scoreboard, scoreboard_of
from keepstep.plan.report.series import Series, series_of
from keepstep.plan.report.words import UNKNOWN, counted, number_text, seconds_text, size_text, step_text, time_text
from keepstep.plan.resume import Condition

# The whole text stands in a table further down.
_LONGEST_DETAIL = 160


@dataclass(frozen=True)
class Told:
    """One line of the summary: a label, a value, and what explains it."""

    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True)
class RunStory:
    """All sections of a report.

    Attributes:
        name, folder, now, origin: as in the facts.
        state, why: how the run stands, in a word and a sentence.
        step, total_steps: the newest step that is known, and the last one; None where nothing tells.
        seconds_per_step: lately, saving included; `left` the seconds that the rest will take at that.
        redone: steps that were made twice, and `restarts` the seconds that starts took, as far as rows tell.
        summary: the lines on top.
        attempts, events: in order.
        series: loss, learning rate and what else was logged.
        scores, saves, sizes, mirrors, record, checkpoints, leftovers, forks: the sections.
        notes: what is missing, or odd.
    """

    name: str
    folder: str
    now: float
    origin: str | None
    state: str
    why: str
    step: int | None
    total_steps: int | None
    seconds_per_step: float | None
    left: float | None
    redone: int
    restarts: float
    summary: tuple[Told, ...]
    attempts: tuple[Attempt, ...]
    events: tuple[Event, ...]
    series: tuple[Series, ...]
    scores: Scoreboard
    saves: SaveCosts
    sizes: Series
    mirrors: tuple[Mirror, ...]
    record: RunRecord
    checkpoints: tuple[CheckpointFact, ...]
    leftovers: tuple[str, ...]
    forks: tuple[str, ...]
    notes: tuple[str, ...]


def story_of(
    facts: Facts, metric: str | None = None, mode: Mode | None = None, guards: Iterable[Guard] = ()
) -> RunStory:
    """Tell a run by what was found.

    Args:
        facts: what was found.
        metric, mode, guards: what decides which checkpoint is the best; see `scoreboard_of`.

    Raises:
        ConfigError: a name means several metrics, or none.
    """
    logged = facts.logged_step
    attempts = attempts_of(facts, logged)
    complete = [one.step for one in facts.checkpoints if one.condition == Condition.COMPLETE.value]
    steps = [step for step in (logged, *complete[-1:], *(one.end for one in attempts[-1:])) if step is not None]
    step = max(steps, default=None)
    pace = seconds_per_step(facts.saves)
    costs = costs_of(facts.saves)
    board = _board(facts, metric, mode, guards)
    mirrors = mirrors_of(facts.saves, complete)
    state, why = state_of(facts, attempts[-1] if attempts else None)
    redone = sum(one.redone for one in attempts)
    story = RunStory(
        name=facts.name,
        folder=facts.folder,
        now=facts.now,
        origin=facts.origin,
        state=state,
        why=why,
        step=step,
        total_steps=facts.total_steps,
        seconds_per_step=pace,
        left=_left(step, facts.total_steps, pace),
        redone=redone,
        restarts=restart_seconds(facts.saves),
        summary=(),
        attempts=attempts,
        events=events_of(facts, attempts),
        series=facts.logged,
        scores=board,
        saves=costs,
        sizes=_sizes(facts, costs),
        mirrors=mirrors,
        record=record_of(facts.records),
        checkpoints=facts.checkpoints,
        leftovers=facts.leftovers,
        forks=tuple(fork.name for fork in facts.forks),
        notes=facts.notes,
    )
    return _with_summary(story, facts)


def _board(facts: Facts, metric: str | None, mode: Mode | None, guards: Iterable[Guard]) -> Scoreboard:
    found = [(c.step, c.digest if c.condition == Condition.COMPLETE.value else "") for c in facts.checkpoints]
    incomplete = {step for step, digest in found if not digest}
    newest = facts.records[max(facts.records)] if facts.records else {}
    decider = decider_of(newest, facts.trainer)
    present = [one for one in found if one[1]]
    return scoreboard_of(facts.scores, present, metric, mode, guards, incomplete, decider)


def _with_summary(story: RunStory, facts: Facts) -> RunStory:
    lines = (
        Told("State", story.state, story.why),
        _progress(story),
        _attempts(story),
        _lost(story),
        _last_save(story),
        _mirror(story.mirrors),
        _best(story.scores),
    )
    summary = tuple(replace(line, detail=_cut(line.detail)) for line in lines)
    return replace(story, summary=summary, notes=(*facts.notes, *_odd(story.series)))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_DETAIL else text[: _LONGEST_DETAIL - 1] + "…"


def _odd(series: Sequence[Series]) -> list[str]:
    return [
        f"{one.name}: {counted(one.not_finite, 'value')} of {one.count:,} not finite, "
        f"the first at step {step_text(one.first_not_finite)}"
        for one in series
        if one.not_finite
    ]


def _left(step: int | None, total: int | None, pace: float | None) -> float | None:
    return None if step is None or total is None or pace is None or step >= total else (total - step) * pace


def _progress(story: RunStory) -> Told:
    if story.step is None:
        return Told("Step", UNKNOWN, "no step is known")
    if not story.total_steps:
        return Told("Step", step_text(story.step), "the last one is not written down")
    left = f", {seconds_text(story.left)} left at the last pace" if story.left is not None else ""
    share = 100 * story.step / story.total_steps
    return Told("Step", step_text(story.step), f"of {step_text(story.total_steps)} ({share:.0f} %){left}")


def _attempts(story: RunStory) -> Told:
    failed = sum(one.failures for one in story.attempts)
    detail = f"begun from {story.origin}" if story.origin else ""
    forks = counted(len(story.forks), "fork") if story.forks else ""
    bad = f"{counted(failed, 'save')} failed" if failed else ""
    return Told("Attempts", str(len(story.attempts)), ", ".join(part for part in (detail, forks, bad) if part))


def _lost(story: RunStory) -> Told:
    """The time in saves and starts, and that of steps that were made twice, at the last pace."""
    again = story.redone * (story.seconds_per_step or 0.0)
    known = f" (about {seconds_text(again)})" if again else ""
    steps = (
        f"{counted(story.redone, 'step')} made again{known}" if story.redone else "no step is known to be made twice"
    )
    stalled = f"{seconds_text(story.saves.stall)} in {counted(len(story.saves.saves), 'save')}"
    started = f"; {seconds_text(story.restarts)} in starts" if story.restarts else ""
    return Told("Time lost", seconds_text(story.saves.stall + again + story.restarts), f"{stalled}{started}; {steps}")


def _last_save(story: RunStory) -> Told:
    event = next((one for one in reversed(story.saves.saves)), None)
    if event is None:
        newest = story.checkpoints[-1] if story.checkpoints else None
        if newest is None:
            return Told("Last save", UNKNOWN, "none is known")
        return Told("Last save", f"step {step_text(newest.step)}", f"{time_text(newest.created_at)} UTC")
    at = next((one.time for one in reversed(story.events) if (one.kind, one.step) == ("saved", event.step)), None)
    size = f", {size_text(event.bytes)}" if event.bytes is not None else ""
    stall = f", the job waited {seconds_text(event.stall)}" if event.stall is not None else ""
    return Told("Last save", f"step {step_text(event.step)}", f"{time_text(at)} UTC{size}{stall}")


def _mirror(mirrors: Sequence[Mirror]) -> Told:
    if not mirrors:
        return Told("Mirror", "none", "no upload is written down")
    behind = [one for one in mirrors if one.problem]
    newest = min((one.newest for one in mirrors if one.newest is not None), default=None)
    value = "failing" if behind else f"step {step_text(newest)}" if newest is not None else "nothing uploaded"
    waiting = sum(one.waiting for one in mirrors)
    detail = behind[0].problem if behind else f"{counted(waiting, 'newer checkpoint')} not uploaded" if waiting else ""
    return Told("Mirror", value, detail or "nothing waits")


def _best(board: Scoreboard) -> Told:
    if board.chosen is None:
        return Told("Best score", UNKNOWN, board.why_none)
    return Told("Best score", number_text(board.value), f"step {step_text(board.chosen.step)}: {board.chosen.reason}")


def _sizes(facts: Facts, costs: SaveCosts) -> Series:
    """Bytes by step: of checkpoints that are there by their manifests, of others by the log."""
    logged = [(one.step, float(one.bytes)) for one in costs.saves if one.bytes is not None]
    there = [(one.step, float(one.size)) for one in facts.checkpoints if one.size is not None]
    return series_of("checkpoint", [*logged, *there])
