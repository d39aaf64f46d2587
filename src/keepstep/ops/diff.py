"""Compares two checkpoints, or a checkpoint and an export: run records, configuration, tensors, values."""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from keepstep.errors import ConfigError, DamagedCheckpointError
from keepstep.ops.address import open_side
from keepstep.ops.tensor_source import Item, Side
from keepstep.ops.unequal import Watch, find_unequal
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
    both = [(items_a[key], items_b[key]) for key in matched.both]
    unequal, read = find_unequal(first, second, both, values=values, watch=watch)
    different = tuple(sorted((Different(item.kind, found) for item, found in unequal), key=_order))
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


def _header(side: Side, left_out: int) -> Header:
    run = (side.record or {}).get("run")
    return Header(
        side.path, side.form, side.step, side.world_size, side.size, run if isinstance(run, str) else None, left_out
    )


def _order(one: Different) -> tuple[Any, ...]:
    finite, apart = one.values.order if one.values else (True, -1.0)
    return finite, -apart, -one.kind.size, one.kind.key


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
