"""How two checkpoints differ: pure comparison of their run records, and of what tensors and values they hold."""

import json
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# A run record has about a hundred fields. What goes beyond these was made to take memory or time.
_MAX_DEPTH = 64
_MAX_FIELDS = 100_000
_MAX_PATH = 1000
# These tell one save from another of the same state, so they alone make no difference.
OF_THE_SAVE = frozenset({"created_at", "attempt", "parent_step"})


class RecordError(ValueError):
    """The record is too deep or too large to be one of keepstep."""


@dataclass(frozen=True)
class Field:
    """A field that differs: its dotted path, and its value on each side as JSON; None where it is missing."""

    field: str
    a: str | None
    b: str | None


@dataclass(frozen=True)
class Kind:
    """What an item is. `dtype` is torch's name, empty for a Python value; `size` in bytes, without frames."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    size: int


@dataclass(frozen=True)
class Changed:
    """An item that has another dtype or shape in `b` than in `a`, or is a tensor in one and a value in the other."""

    key: str
    a: Kind
    b: Kind


@dataclass(frozen=True)
class Matched:
    """Which items the sides share: keys in the order of `a`, those to be compared byte by byte under `both`."""

    both: tuple[str, ...]
    added: tuple[Kind, ...]
    removed: tuple[Kind, ...]
    changed: tuple[Changed, ...]


@dataclass(frozen=True)
class Tally:
    """One component: how many of its items are equal, different, only in `b`, only in `a`, of another kind."""

    component: str
    equal: int
    different: int
    added: int
    removed: int
    changed: int


def flatten(record: Mapping[str, Any]) -> dict[str, str]:
    """Each leaf of nested mappings (and of lists that hold some) by its dotted path, as JSON text.

    A key with a dot, or an empty one, stands in quotation marks.

    Raises:
        RecordError: it has more than 100,000 leaves, or is nested more than 64 deep, or a path is longer than
            1,000 characters.
    """
    flat: dict[str, str] = {}
    waiting: list[tuple[str, int, Any]] = [("", 0, record)]
    while waiting:
        path, depth, value = waiting.pop()
        if depth > _MAX_DEPTH or len(path) > _MAX_PATH or len(flat) + len(waiting) > _MAX_FIELDS:
            raise RecordError(f"it is too large or too deep at {reprlib.repr(path)}")
        inner = _inner(value)
        if inner is None:
            flat[path] = json.dumps(value)
        else:
            waiting += [(f"{path}.{key}" if path else key, depth + 1, one) for key, one in inner]
    flat.pop("", None)  # an empty record has no field
    return flat


def _inner(value: Any) -> list[tuple[str, Any]] | None:
    """What a container holds; None of a leaf."""
    if isinstance(value, dict) and value:
        return [(json.dumps(key) if "." in key or not key else key, one) for key, one in value.items()]
    if isinstance(value, list) and any(isinstance(one, dict | list) for one in value):
        return [(str(number), one) for number, one in enumerate(value)]
    return None


def compare_fields(a: Mapping[str, str], b: Mapping[str, str]) -> tuple[Field, ...]:
    """The fields that differ, by name. Values are compared as JSON text: 1, 1.0 and true are three values."""
    return tuple(
        Field(name, a.get(name), b.get(name)) for name in sorted(a.keys() | b.keys()) if a.get(name) != b.get(name)
    )


def match(a: Mapping[str, Kind], b: Mapping[str, Kind]) -> Matched:
    """Pair the items of two sides by key."""
    both, changed = [], []
    for key, kind in a.items():
        other = b.get(key)
        if other is None:
            continue
        # Of a value only the slot's size is known, which tells nothing of it.
        same_size = kind.size == other.size or not kind.dtype
        if same_size and (kind.dtype, kind.shape) == (other.dtype, other.shape):
            both.append(key)
        else:
            changed.append(Changed(key, kind, other))
    return Matched(
        tuple(both),
        tuple(b[key] for key in sorted(b.keys() - a.keys())),
        tuple(a[key] for key in sorted(a.keys() - b.keys())),
        tuple(sorted(changed, key=lambda one: one.key)),
    )


def component_of(key: str) -> str:
    """The part of a job's state that a key belongs to."""
    return key.partition(".")[0]


def tally(matched: Matched, different: Sequence[str]) -> tuple[Tally, ...]:
    """Count by component."""
    counts: dict[str, dict[str, int]] = {}

    def count(key: str, what: str) -> None:
        one = counts.setdefault(
            component_of(key), dict.fromkeys(("equal", "different", "added", "removed", "changed"), 0)
        )
        one[what] += 1

    unequal = set(different)
    for key in matched.both:
        count(key, "different" if key in unequal else "equal")
    for what, kinds in (("added", matched.added), ("removed", matched.removed), ("changed", matched.changed)):
        for kind in kinds:
            count(kind.key, what)
    return tuple(Tally(name, **counts[name]) for name in sorted(counts))
