"""What a run itself says of the metric that decides which checkpoint is its best."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keepstep.config.bounds import Guard, parse_guard
from keepstep.errors import ConfigError
from keepstep.plan.metrics import Mode
from keepstep.plan.report.facts import Row, finite, text, whole

# The set that a Trainer's evaluations are shown as, and how it begins the names of their metrics.
EVAL_SET, EVAL_PREFIX = "eval", "eval_"


@dataclass(frozen=True)
class Decider:
    """What decides. `mode` is None where only the name of the metric tells; `source`: who says so, in words."""

    metric: str
    mode: Mode | None
    guards: tuple[Guard, ...] = ()
    source: str = ""


def decider_of(record: Row, state: Row) -> Decider | None:
    """The first rule of `keep.best`; else what a Trainer's arguments or its state name; None where nothing does.

    Args:
        record: a run record.
        state: a Trainer's state; empty where there is none.
    """
    return _of_job(record) or _of_arguments(record) or _of_state(state)


def _of_job(record: Row) -> Decider | None:
    best = _inner(record, "config", "trainer", "checkpointing", "keep").get("best")
    rule = best[0] if isinstance(best, Sequence) and not isinstance(best, str) and best else best
    if not isinstance(rule, Mapping) or "/" not in text(rule.get("metric")):
        return None
    told = rule.get("guards")
    guards = [told] if isinstance(told, str) else told if isinstance(told, Sequence) else ()
    try:
        bounds = tuple(parse_guard(text(one)) for one in guards)
    except ConfigError:
        return None
    return Decider(text(rule.get("metric")), _mode(rule.get("mode")), bounds, "keep.best of the run")


def _of_arguments(record: Row) -> Decider | None:
    arguments = _inner(record, "config", "training_arguments")
    name, more = text(arguments.get("metric_for_best_model")), arguments.get("greater_is_better")
    mode: Mode | None = ("max" if more else "min") if isinstance(more, bool) else None
    return Decider(_eval_name(name), mode, (), "metric_for_best_model of the Trainer") if name else None


def _of_state(state: Row) -> Decider | None:
    """By the value that its best checkpoint has, which is the least or the most: a state does not name the metric."""
    best, history = finite(state.get("best_metric")), state.get("log_history")
    step = whole(state.get("best_global_step"))
    if step is None:
        step = _step_in(text(state.get("best_model_checkpoint")))
    entries = [one for one in history if isinstance(one, Mapping)] if isinstance(history, list) else []
    at_best = [one for one in entries if step is None or one.get("step") == step]
    names = {name for one in at_best for name, value in one.items() if name.startswith(EVAL_PREFIX) and value == best}
    ends = {name: (min(values), max(values)) for name in names if (values := _values(entries, name))}
    fitting = [name for name, values in ends.items() if best in values]
    if best is None or len(fitting) != 1:
        return None
    least, most = ends[fitting[0]]
    mode: Mode | None = None if least == most else "max" if best == most else "min"
    return Decider(_eval_name(fitting[0]), mode, (), "best_metric of the Trainer's state")


def _values(entries: Sequence[Row], name: str) -> list[float]:
    return [value for one in entries if (value := finite(one.get(name))) is not None]


def _step_in(path: str) -> int | None:
    """The step in the name of a Trainer's checkpoint; None where there is none."""
    digits = path.rpartition("-")[2]
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 16 else None


def _eval_name(name: str) -> str:
    return f"{EVAL_SET}/{name.removeprefix(EVAL_PREFIX)}"


def _mode(value: object) -> Mode | None:
    return "max" if value == "max" else "min" if value == "min" else None


def _inner(row: Row, *names: str) -> Row:
    for name in names:
        found = row.get(name)
        row = found if isinstance(found, Mapping) else {}
    return row
