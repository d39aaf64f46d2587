"""What an observed run did, step by step, as digests: the input of a twin check."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

Digests = Mapping[str, str]


@dataclass(frozen=True)
class Start:
    """Where a run began, and all state right after its `resume()`.

    Attributes:
        step: completed steps.
        total_steps: the run's last step, None when it is not known.
        state: digest of each key of the job's state.
        random: digest of each global random state, by kind.
    """

    step: int
    total_steps: int | None
    state: Digests
    random: Digests


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        step: its number.
        inputs, outputs: digests of what each forward pass was given and gave.
        random: random states at the first forward pass, by kind.
        entered: state at the first forward pass; only of a run's first step.
        rates: learning rates of the groups at each step of a registered optimizer.
        seeded: places that seeded a global random state since `resume()`.
        steps_in_epoch: None when the data has no length.
        notes: what the job itself told: its loss, its samples.
        state: digest of each key of the job's state at the step's end.
        after: random states at the step's end, by kind.
    """

    step: int
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    random: Digests = field(default_factory=dict)
    entered: Digests = field(default_factory=dict)
    rates: tuple[tuple[float, ...], ...] = ()
    seeded: tuple[str, ...] = ()
    steps_in_epoch: int | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    state: Digests = field(default_factory=dict)
    after: Digests = field(default_factory=dict)


@dataclass(frozen=True)
class Trace:
    """One rank's part of one run: its start and its steps by number."""

    start: Start
    steps: Mapping[int, Step]


def to_line(part: Start | Step) -> str:
    """One line of JSON."""
    return json.dumps({"kind": type(part).__name__, **asdict(part)}) + "\n"


def from_lines(lines: Iterable[str]) -> Trace | None:
    """A trace from its lines; None when the run did not even start."""
    start: Start | None = None
    steps: dict[int, Step] = {}
    for line in lines:
        values = json.loads(line)
        if values.pop("kind") == "Start":
            start = start or Start(**values)
            continue
        for name in ("inputs", "outputs", "seeded"):
            values[name] = tuple(values[name])
        values["rates"] = tuple(map(tuple, values["rates"]))
        steps[values["step"]] = Step(**values)
    return None if start is None else Trace(start, steps)


@dataclass(frozen=True)
class Stops:
    """At which steps a twin check stops the run, and the last step that it looks at."""

    stops: tuple[int, ...]
    last: int


# Steps looked at after the last stop, and the longest epoch whose end is worth walking to.
_AFTER = 3
LONGEST = 200


def choose_stops(steps_in_epoch: int | None, total_steps: int | None) -> Stops:
    """Early, and at and after the first epoch's end where that is near. Every stop leaves a step to compare.

    Args:
        steps_in_epoch: None when it is not known.
        total_steps: the run's last step, None when it is not known.
    """
    wanted = [3, 13]
    if steps_in_epoch is not None:
        wanted = [3, steps_in_epoch, steps_in_epoch + 2] if steps_in_epoch <= LONGEST else [3]
    last = max(wanted) + _AFTER
    if total_steps is not None:
        last = min(last, total_steps)
    return Stops(tuple(sorted({max(1, stop) for stop in wanted if stop < last} or {1} if last > 1 else ())), last)
