"""Scores of checkpoints: the rows of `scores.jsonl`, and what they say together."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

FILE = "scores.jsonl"
# The set that a command's metrics belong to where it does not say.
DEFAULT_SET = "task"

SCORED = "scored"
RETRY = "retry"
FAILED = "failed"
MARKED = "marked"
OUTCOMES = (SCORED, RETRY, FAILED, MARKED)
# After these nobody scores the checkpoint again.
FINAL = (SCORED, FAILED, MARKED)

_SET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_ODD_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class MetricsError(ValueError):
    """What a scorer gave is no set of metrics."""


@dataclass(frozen=True)
class Score:
    """One row: what came of scoring one checkpoint on one set.

    Attributes:
        step: of the checkpoint.
        digest: of its manifest, so of every byte: another checkpoint of the same step has another one.
        set: name of the set of examples.
        outcome: "scored"; "retry": it failed and is tried again; "failed": for the last time; "marked": somebody had
            scored it before (a `.scored` file) and the numbers are not known.
        checkpoint: its folder's name.
        metrics: what was measured; a value may be NaN or infinite.
        problem: why it failed.
        seconds: that the scorer took.
        command: what was run, in parts.
        versions: of Python, keepstep and what else was asked for.
        tries: how often it was tried until then.
        time: when the row was written, in seconds since the epoch by the clock of the machine that did.
        watcher: who wrote it: host and process.
    """

    step: int
    digest: str
    set: str
    outcome: str
    checkpoint: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    problem: str = ""
    seconds: float = 0.0
    command: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    tries: int = 1
    time: float = 0.0
    watcher: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """What may be scored once: this checkpoint on this set."""
        return self.digest, self.set

    def named_metrics(self) -> dict[str, float]:
        """Metrics by their full names, `<set>/<metric>`. A command without named sets may name them itself."""
        return {
            name if self.set == DEFAULT_SET and "/" in name else f"{self.set}/{name}": value
            for name, value in self.metrics.items()
        }


def is_set_name(name: str) -> bool:
    """Whether a set may be called that."""
    return _SET.fullmatch(name) is not None


def to_line(score: Score) -> str:
    """A row as one line of strict JSON. NaN and infinities, which JSON has not, are words."""
    row = {**asdict(score), "metrics": {name: writable(value) for name, value in score.metrics.items()}}
    return json.dumps({name: value for name, value in row.items() if value not in ("", {}, [], ())}, allow_nan=False)


def from_lines(text: str) -> tuple[tuple[Score, ...], int]:
    """The rows of a file, and how many of its lines are none.

    A last line without an end counts if it is a row (an editor ends no line); else it is being written, or never was.
    """
    rows, others = [], 0
    *lines, last = text.removeprefix("\ufeff").split("\n")
    for line in lines:
        if not line.strip():
            continue
        score = _from_line(line)
        if score is None:
            others += 1
        else:
            rows.append(score)
    if (score := _from_line(last)) is not None:
        rows.append(score)
    return tuple(rows), others


def last_words(rows: Iterable[Score]) -> dict[tuple[str, str], Score]:
    """For each checkpoint and set what counts: the first row of numbers, which nobody may change; else the last row."""
    found: dict[tuple[str, str], Score] = {}
    for row in rows:
        before = found.get(row.key)
        if before is None or before.outcome != SCORED:
            found[row.key] = row
    return found


@dataclass(frozen=True)
class Measured:
    """All that is known of one checkpoint.

    Attributes:
        metrics: by full name.
        doubled: the values of each name that two sets gave, where they differ.
        failed: sets on which scoring failed for good, and why.
    """

    step: int
    digest: str
    checkpoint: str
    metrics: Mapping[str, float]
    doubled: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def ambiguous(self) -> tuple[str, ...]:
        """Names that do not tell which value is meant."""
        return tuple(sorted(self.doubled))


def measured(rows: Iterable[Score], more: Iterable[Score] = ()) -> tuple[Measured, ...]:
    """What is known of each checkpoint, by step; of several with one step the one that was scored last comes last.

    Args:
        rows: of `scores.jsonl`.
        more: what somebody else has measured. It takes the place of no row.
    """
    by_digest: dict[str, list[Score]] = {}
    for row in (*last_words(rows).values(), *more):
        by_digest.setdefault(row.digest, []).append(row)
    return tuple(sorted((_joined(group) for group in by_digest.values()), key=lambda one: one.step))


def _joined(group: list[Score]) -> Measured:
    metrics: dict[str, float] = {}
    doubled: dict[str, tuple[float, ...]] = {}
    for row in group:
        for name, value in row.named_metrics().items():
            if name in metrics and not _is_same(metrics[name], value):
                doubled[name] = (*doubled.get(name, (metrics[name],)), value)
            metrics[name] = value
    failed = {row.set: row.problem for row in group if row.outcome == FAILED}
    first = group[0]
    return Measured(first.step, first.digest, first.checkpoint, metrics, doubled, failed)


def metrics_in(text: str) -> dict[str, float]:
    """The metrics in what a scorer printed: the last JSON object that begins a line, on one line or over several.

    Objects in it are flattened: `{"canary": {"accuracy": 0.9}}` is `canary/accuracy`. Values that are no numbers (a
    comment, the name of a data set) are left out.

    Raises:
        MetricsError: there is none, or the last is broken; or it holds no number, or two metrics with one name.
    """
    lines = [line.rstrip("\r") for line in text.split("\n")]
    for number in range(len(lines) - 1, -1, -1):
        line = lines[number]
        if not line.lstrip().startswith("{"):
            continue
        try:
            return _flat(json.loads(line, object_pairs_hook=_Pairs))
        except MetricsError:
            raise
        except (ValueError, RecursionError):
            if not line.startswith("{"):
                continue  # indented: a part of an object over several lines
        try:
            return _flat(_DECODER.raw_decode("\n".join(lines[number:]))[0])
        except MetricsError:
            raise
        except (ValueError, RecursionError):
            # An earlier line is not what it meant to say last.
            raise MetricsError(f"the last JSON that it printed is broken: {line[:100]}") from None
    raise MetricsError('it printed no metrics; the last line that is JSON must be an object: {"accuracy": 0.91}')


def metrics_from(value: Mapping[Any, Any]) -> dict[str, float]:
    """The metrics that a function returned. Raises MetricsError."""
    return _flat(_Pairs(value.items()))


class _Pairs(list[tuple[Any, Any]]):
    """An object of JSON as it stands there, doubled names and all."""


_DECODER = json.JSONDecoder(object_pairs_hook=_Pairs)


def _flat(pairs: _Pairs) -> dict[str, float]:
    found: dict[str, float] = {}
    _flatten("", pairs, found)
    if not found:
        raise MetricsError("its metrics hold no number")
    return found


def _flatten(prefix: str, pairs: _Pairs, found: dict[str, float]) -> None:
    for key, value in pairs:
        name = f"{prefix}{key}"
        number = _number(value)
        if isinstance(value, Mapping):
            value = _Pairs(value.items())
        if isinstance(value, _Pairs):
            _flatten(f"{name}/", value, found)
        elif number is not None:
            if name in found:
                raise MetricsError(f"two of its metrics are called {name}")
            found[name] = number


def _number(value: object) -> float | None:
    """A number, also one of numpy or torch; None for all else, and for true and false."""
    if isinstance(value, bool | str | bytes | list | tuple | dict):
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None


def writable(value: float) -> float | str:
    """A number as JSON has it: NaN and infinities are words."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _is_same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def _from_line(line: str) -> Score | None:
    try:
        row = json.loads(line)
        known = {name: row[name] for name in Score.__dataclass_fields__ if name in row}
        metrics = {name: float(_ODD_NUMBERS.get(value, value)) for name, value in row.get("metrics", {}).items()}
        score = Score(**{**known, "metrics": metrics, "command": tuple(row.get("command", ()))})
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
    return score if _has_its_types(score) else None


def _has_its_types(score: Score) -> bool:
    texts = (score.digest, score.set, score.checkpoint, score.problem, score.watcher, *score.command)
    numbers = (score.seconds, score.time)
    return (
        type(score.step) is int
        and type(score.tries) is int
        and score.outcome in OUTCOMES
        and all(isinstance(text, str) for text in texts)
        and all(type(number) in (int, float) and math.isfinite(number) for number in numbers)
        and isinstance(score.versions, dict)
        and all(isinstance(version, str) for version in score.versions.values())
    )
