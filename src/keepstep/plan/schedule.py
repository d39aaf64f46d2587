"""At which steps a job saves, and the factor of the learning rate at each step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from keepstep.config.checkpointing import Period
from keepstep.config.training import LRSchedulerConfig, PhaseConfig


def is_save_due(step: int, total_steps: int | None, period: Period) -> bool:
    """Whether `step` completed steps call for a save. The last step always does, unless saving is disabled."""
    if period == "disable" or step < 1:
        return False
    if step == total_steps:
        return True
    return isinstance(period, int) and step % period == 0


@dataclass(frozen=True)
class Segment:
    """A phase with its place in steps: it covers completed steps `begin <= step < end`."""

    begin: int
    end: int
    start: float
    to: float
    curve: str


class ScheduleError(ValueError):
    """The phases do not fit into total_steps."""


def segments(config: LRSchedulerConfig, total_steps: int) -> tuple[Segment, ...]:
    """Lay the phases out over `total_steps`. Phases in percent move with it, phases in steps do not.

    Percent boundaries are rounded once, at their running sum, so that phases leave no gap.
    """
    lengths = _lengths(config.phases, total_steps)
    placed = []
    begin, level = 0, config.begin
    for phase, length in zip(config.phases, lengths, strict=True):
        placed.append(Segment(begin, begin + length, level, phase.to, phase.curve))
        begin, level = begin + length, phase.to
    return tuple(placed)


def _lengths(phases: Sequence[PhaseConfig], total_steps: int) -> list[int]:
    lengths, percent = [], 0.0
    for phase in phases:
        if phase.steps is not None:
            lengths.append(phase.steps)
        elif phase.percent is not None:
            before = round(total_steps * percent / 100)
            percent += phase.percent
            lengths.append(round(total_steps * percent / 100) - before)
        else:
            lengths.append(0)
    left = total_steps - sum(lengths)
    if left < 0:
        raise ScheduleError(f"the phases take {sum(lengths)} steps, total_steps is {total_steps}")
    return [left if phase.rest else length for phase, length in zip(phases, lengths, strict=True)]


def factor(placed: Sequence[Segment], step: int) -> float:
    """The factor of the base learning rate for the optimizer step that follows `step` completed steps.

    Within a phase of n steps the curve runs over step/n, so it reaches its goal with the step after the phase; after
    the last phase the goal is held. Without phases the factor is 1. Never negative, never NaN.
    """
    if not placed:
        return 1.0
    for segment in placed:
        if segment.begin <= step < segment.end:
            return _curve(segment, (step - segment.begin) / (segment.end - segment.begin))
    return placed[-1].to


def _curve(segment: Segment, x: float) -> float:
    start, to = segment.start, segment.to
    match segment.curve:
        case "linear":
            return start + (to - start) * x
        case "cosine":
            return to + (start - to) * (1 + math.cos(math.pi * x)) / 2
        case "exponential":
            # From 0 no exponential can start: it is taken as a millionth of the goal.
            floor = start or to * 1e-6
            return float(floor ** (1 - x) * to**x)  # not (to / floor) ** x, which may be too large
        case "constant":
            return to
        case other:
            raise ValueError(f"unknown curve {other!r}")
