"""Compares two checkpoints, or a checkpoint and an export: run records, configuration, tensors, values."""

from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from keepstep.errors import ConfigError, DamagedCheckpointError
from keepstep.ops.address import open_side
from keepstep.ops.compare import Comparer
from keepstep.ops.data_reader import DataReader
from keepstep.ops.tensor_source import Item, Side
from keepstep.plan.difference import (
    OF_THE_SAVE,
    Changed,
    Field,
    Kind,
    RecordError,
    Tally,
    compare_fields,
    component_of,
    flatten,
    match,
    tally,
)

if TYPE_CHECKING:
    from keepstep.ops.values import ValueDifference

# Told how many bytes of how many were dealt with.
Watch = Callable[[int, int], None]


@dataclass(frozen=True)
class Header:
    """One side: its address as it was given, what it is, and of a checkpoint some facts.

    `left_out` counts the keys that have no counterpart on the other side because that is an export.
    """

    path: str
    form: str
    step: int | None
    world_size: int | None
    size: int
    run: str | None
    left_out: int


@dataclass(frozen=True)
class Different:
    """A tensor or value that is not equal on the two sides.

    `values` stands there only when they were asked for, and only for a dtype whose numbers are known.
    """

    kind: Kind
    values: "ValueDifference | None"


@dataclass(frozen=True)
class Comparison:
    """What is different.

    Attributes:
        a, b: the sides.
        same: whether nothing differs but when and by which attempt a checkpoint was saved.
        same_state: whether all tensors and values are equal.
        record, config: fields of run.json, and those of the configuration in it. Empty where a side is an export.
        tallies: counts by component.
        added, removed, changed: items that only b has, that only a has, that have another dtype or shape.
        different: the unequal ones: those that differ most first if values were asked for, else the largest first.
        bytes_read: of tensors and values.
    """

    a: Header
    b: Header
    same: bool
    same_state: bool
    record: tuple[Field, ...]
    config: tuple[Field, ...]
    tallies: tuple[Tally, ...]
    added: tuple[Kind, ...]
    removed: tuple[Kind, ...]
    changed: tuple[Changed, ...]
    different: tuple[Different, ...]
    bytes_read: int

    def facts(self) -> dict[str, Any]:
        """All of it in plain containers."""
        return asdict(self)


def diff(
    a: str,
    b: str,
    *,
    values: bool = False,
    components: Collection[str] = (),
    watch: Watch = lambda done, total: None,
) -> Comparison:
    """Compare two sides. Digests decide where they can; everything else is read in pieces of 256 KiB.

    Nobody's digests are verified by that: what a checkpoint says of its own bytes is believed (`verify` reads them).

    Args:
        a, b: addresses, see `open_side`.
        values: say of tensors that differ by how much.
        components: compare only these; all if empty. The run records are compared in any case.
        watch: told of the progress, in bytes.

    Raises:
        CheckpointNotFoundError: a side is not there.
        ConfigError: an address or a component is not known.
        DamagedCheckpointError: a side does not hold what its own index or header says.
        CouldNotLookError: a file cannot be read.
    """
    first, second = open_side(a), open_side(b)
    items_a, left_a = _taking_part(first, second, components)
    items_b, left_b = _taking_part(second, first, components)
    if components and not (items_a or items_b):
        there = sorted({component_of(key) for side in (first, second) for key in side.items})
        raise ConfigError(f"no component {', '.join(sorted(components))} on either side; there are {', '.join(there)}")
    matched = match(*({key: item.kind for key, item in items.items()} for items in (items_a, items_b)))
    different, read = _compare(first, second, [(items_a[key], items_b[key]) for key in matched.both], values, watch)
    record, config = _records(first, second)
    same_state = not (different or matched.added or matched.removed or matched.changed)
    return Comparison(
        a=_header(first, left_a),
        b=_header(second, left_b),
        same=same_state and not config and all(field.field in OF_THE_SAVE for field in record),
        same_state=same_state,
        record=record,
        config=config,
        tallies=tally(matched, [one.kind.key for one in different]),
        added=matched.added,
        removed=matched.removed,
        changed=matched.changed,
        different=different,
        bytes_read=read,
    )


def _taking_part(side: Side, other: Side, components: Collection[str]) -> tuple[dict[str, Item], int]:
    """What is compared of a side, and how many items are not because the other side is an export."""
    items = {key: item for key, item in side.items.items() if not components or component_of(key) in components}
    if other.form == side.form or side.form == "safetensors":
        return items, 0
    held = {key: item for key, item in items.items() if key.startswith("model.") and item.kind.dtype}
    return held, len(items) - len(held)


def _compare(
    a: Side, b: Side, both: list[tuple[Item, Item]], values: bool, watch: Watch
) -> tuple[tuple[Different, ...], int]:
    total, done, inside = sum(x.kind.size for x, _ in both), 0, 0
    different: list[Different] = []

    def on_bytes(count: int) -> None:
        nonlocal inside
        inside += count
        watch(done + inside, total)

    with ExitStack() as stack:
        read_a, read_b = (stack.enter_context(DataReader(side)) for side in (a, b))
        comparer = Comparer(a, b, read_a, read_b, on_bytes)
        for x, y in both:
            inside = 0
            found = _measure(comparer, x, y) if values else None
            if found.differing if found else not comparer.same(x, y):
                different.append(Different(x.kind, found))
            done += x.kind.size
            watch(done, total)
        read = read_a.bytes_read + read_b.bytes_read
    return tuple(sorted(different, key=_order)), read


def _measure(comparer: Comparer, a: Item, b: Item) -> "ValueDifference | None":
    """By how much two tensors differ; None if they are known to be equal, or are no numbers that are known."""
    if comparer.same_by_digest(a, b):
        return None
    from keepstep.ops.numbers import decoder
    from keepstep.ops.values import Summary

    if decoder(a.kind.dtype) is None:
        return None
    summary = Summary(a.kind.dtype, a.element)
    for raw_a, raw_b in comparer.elements(a, b):
        summary.add(raw_a, raw_b)
    return summary.result()


def _order(one: Different) -> tuple[Any, ...]:
    measured = one.values.rank if one.values else (False, -1.0)
    return not measured[0], -measured[1], -one.kind.size, one.kind.key


def _records(a: Side, b: Side) -> tuple[tuple[Field, ...], tuple[Field, ...]]:
    """The fields of the run records that differ, and those of the configurations."""
    if a.record is None or b.record is None:
        return (), ()
    record, config = (compare_fields(_flat(a, inner), _flat(b, inner)) for inner in (False, True))
    return record, config


def _flat(side: Side, config: bool) -> dict[str, str]:
    record = dict(side.record or {})
    inner = record.pop("config", None)
    if not isinstance(inner, dict):
        # A job without a configuration, or something else under that name.
        record, inner = {**record, "config": inner}, {}
    try:
        return flatten(inner if config else record)
    except (RecordError, RecursionError) as error:
        raise DamagedCheckpointError(f"{side.path}: its run.json is no run record: {error}") from None


def _header(side: Side, left_out: int) -> Header:
    run = (side.record or {}).get("run")
    return Header(
        side.path, side.form, side.step, side.world_size, side.size, run if isinstance(run, str) else None, left_out
    )
