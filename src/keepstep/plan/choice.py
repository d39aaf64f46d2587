"""Which checkpoint is the best: by one metric, among those that pass all guards."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from keepstep.config.bounds import Guard
from keepstep.plan.metrics import Mode, best_first, full_name, names_in, obstacle, shown
from keepstep.plan.scores import Measured

_SHOWN = 8


class Standing(StrEnum):
    """What a checkpoint is in a choice."""

    CHOSEN = "chosen"
    ELIGIBLE = "eligible"
    LEFT_OUT = "left out"
    GONE = "gone"


@dataclass(frozen=True)
class ChoiceRow:
    """One checkpoint in a choice.

    Attributes:
        digest: of its manifest.
        values: of the metric and of those of the guards, as far as it has them.
        reason: why it stands where it does.
    """

    step: int
    digest: str
    values: Mapping[str, float]
    standing: Standing
    reason: str


@dataclass(frozen=True)
class Choice:
    """A choice and all that it was made among.

    Attributes:
        metric: by its full name.
        rows: by step; what is scored and gone is there too.
        chosen: its step; None where nothing is eligible.
        chosen_digest: of its manifest: in a folder of Lightning's several have one step.
    """

    metric: str
    mode: Mode
    guards: tuple[Guard, ...]
    rows: tuple[ChoiceRow, ...]
    chosen: int | None
    chosen_digest: str | None = None

    @property
    def metrics(self) -> tuple[str, ...]:
        """What the choice looks at, the metric first."""
        return tuple(dict.fromkeys([self.metric, *(guard.metric for guard in self.guards)]))


def choose(
    measured: Sequence[Measured],
    present: Mapping[int, str] | Iterable[tuple[int, str]],
    metric: str,
    mode: Mode,
    guards: Iterable[Guard] = (),
    incomplete: Collection[int] = (),
) -> Choice:
    """Choose among the checkpoints that are there.

    Args:
        measured: what is known of each, those that are gone too.
        present: step and manifest digest of each complete checkpoint, in pairs where several have one step. A score of
            another digest is of another one.
        metric: that decides, by its full name, or without its set where just one has it.
        mode: "max": the highest value is the best.
        guards: all must be kept.
        incomplete: steps of checkpoints that are there and not complete, or that keepstep has not committed.

    Raises:
        ConfigError: a name means several metrics, or none.
    """
    known = names_in(measured)
    metric = full_name(metric, known)
    bounds = tuple(replace(guard, metric=full_name(guard.metric, known)) for guard in guards)
    names = tuple(dict.fromkeys([metric, *(guard.metric for guard in bounds)]))
    by_digest = {one.digest: one for one in measured}
    pairs = dict.fromkeys(present.items() if isinstance(present, Mapping) else present)
    rows = [_row_of_present(step, digest, by_digest.get(digest), names, bounds) for step, digest in pairs]
    values = {_key(row): row.values[metric] for row in rows if row.standing is Standing.ELIGIBLE}
    order = best_first(values, mode)
    places = {key: place for place, key in enumerate(order, 1)}
    rows = [_placed(row, metric, mode, values, places) for row in rows]
    steps, digests = {step for step, _ in pairs}, {digest for _, digest in pairs}
    rows += [_row_of_gone(one, steps, incomplete, names) for one in measured if one.digest not in digests]
    rows.sort(key=lambda row: (row.step, row.standing is not Standing.GONE))
    step, digest = order[0] if order else (None, None)
    return Choice(metric, mode, bounds, tuple(rows), step, digest)


def why_none(choice: Choice) -> str:
    """Why nothing was eligible, with the steps for each reason; the first of many."""
    steps: dict[str, list[int]] = {}
    for row in choice.rows:
        steps.setdefault(row.reason, []).append(row.step)
    told = [f"{reason} (step {_first(list(map(str, found)), ', ')})" for reason, found in steps.items()]
    return _first(told, "; ") or "there is no complete checkpoint"


def _first(texts: Sequence[str], between: str) -> str:
    more = len(texts) - _SHOWN
    return between.join([*texts[:_SHOWN], *([f"and {more} more"] if more > 0 else [])])


def _row_of_present(
    step: int, digest: str, measured: Measured | None, names: Sequence[str], guards: Sequence[Guard]
) -> ChoiceRow:
    reason = obstacle(measured, names[0]) or failed_guard(guards, measured)
    standing = Standing.LEFT_OUT if reason else Standing.ELIGIBLE
    return ChoiceRow(step, digest, _values(measured, names), standing, reason)


def failed_guard(guards: Iterable[Guard], measured: Measured | None) -> str:
    """Why the first guard that fails does; empty where all are kept."""
    return next(filter(None, (_failed(guard, measured) for guard in guards)), "")


def _failed(guard: Guard, measured: Measured | None) -> str:
    if measured is None or guard.metric not in measured.metrics or guard.metric in measured.doubled:
        return f"guard {guard}: {obstacle(measured, guard.metric)}"
    value = measured.metrics[guard.metric]
    if guard.admits(value):
        return ""
    told = shown(value)
    # As many digits as it takes to see that the bound is not kept.
    return f"guard {guard}: it is {repr(value) if guard.admits(float(told)) else told}"


def _key(row: ChoiceRow) -> tuple[int, str]:
    return row.step, row.digest


def _placed(
    row: ChoiceRow,
    metric: str,
    mode: Mode,
    values: Mapping[tuple[int, str], float],
    places: Mapping[tuple[int, str], int],
) -> ChoiceRow:
    if row.standing is not Standing.ELIGIBLE:
        return row
    key, best = _key(row), next(iter(places))
    if key == best:
        word = "highest" if mode == "max" else "lowest"
        return replace(row, standing=Standing.CHOSEN, reason=f"the {word} {metric} of {len(values)} eligible")
    if values[key] == values[best]:
        told = "another of this step" if row.step == best[0] else f"step {best[0]}, which is earlier"
        return replace(row, reason=f"equal to {told}")
    return replace(row, reason=f"number {places[key]} of {len(values)} eligible")


def _row_of_gone(
    measured: Measured, present: Collection[int], incomplete: Collection[int], names: Iterable[str]
) -> ChoiceRow:
    if measured.step in present:
        reason = "of another checkpoint of this step, which is gone"
    else:
        reason = "not complete" if measured.step in incomplete else "not there any more"
    return ChoiceRow(measured.step, measured.digest, _values(measured, names), Standing.GONE, reason)


def _values(measured: Measured | None, names: Iterable[str]) -> dict[str, float]:
    """The values that stand for something; a name with two values has none."""
    if measured is None:
        return {}
    return {name: measured.metrics[name] for name in names if name in measured.metrics and name not in measured.doubled}
