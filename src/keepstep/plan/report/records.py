"""The run record, and how it changed from attempt to attempt."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from keepstep.plan.difference import OF_THE_SAVE, RecordError, compare_fields, flatten
from keepstep.plan.guards import RULES
from keepstep.plan.report.facts import Row

_OWN = OF_THE_SAVE | {"step"}
_CONFIG = "config"
_LONGEST = 300


@dataclass(frozen=True)
class Entry:
    """A field of the newest record, and its value as JSON."""

    field: str
    value: str


@dataclass(frozen=True)
class Change:
    """A field that differs between two attempts that follow each other. `effect`: what that may do to the run."""

    before: int
    after: int
    field: str
    was: str
    now: str
    effect: str


@dataclass(frozen=True)
class RunRecord:
    """Of the newest attempt that has one.

    Attributes:
        attempt: which.
        fields, config: of the record, and of the configuration in it.
        changes: over all attempts.
    """

    attempt: int | None
    fields: tuple[Entry, ...] = ()
    config: tuple[Entry, ...] = ()
    changes: tuple[Change, ...] = ()


def record_of(records: Mapping[int, Row]) -> RunRecord:
    """The newest of these records, by attempt, and what changed. One that is too large or too deep counts as none."""
    flat = {number: found for number in sorted(records) if (found := _flat(records[number])) is not None}
    if not flat:
        return RunRecord(None)
    numbers = list(flat)
    newest = numbers[-1]
    entries = [Entry(name, _cut(value)) for name, value in flat[newest].items()]
    changes: list[Change] = []
    for before, after in pairwise(numbers):
        changes += _changes(before, after, flat[before], flat[after])
    return RunRecord(
        newest,
        tuple(one for one in entries if not one.field.startswith(f"{_CONFIG}.")),
        tuple(sorted((one for one in entries if one.field.startswith(f"{_CONFIG}.")), key=lambda one: one.field)),
        tuple(changes),
    )


def _changes(before: int, after: int, a: Mapping[str, str], b: Mapping[str, str]) -> list[Change]:
    found = []
    for one in compare_fields(a, b):
        rule = RULES.get(one.field)
        was, now = ("(missing)" if value is None else _cut(value) for value in (one.a, one.b))
        found.append(Change(before, after, one.field, was, now, rule.effect if rule else ""))
    return sorted(found, key=lambda one: (one.field.startswith(f"{_CONFIG}."), one.field))


def _flat(record: Row) -> dict[str, str] | None:
    try:
        return flatten({name: value for name, value in record.items() if name not in _OWN})
    except (RecordError, RecursionError):
        return None


def _cut(value: str) -> str:
    return value if len(value) <= _LONGEST else value[: _LONGEST - 1] + "…"
