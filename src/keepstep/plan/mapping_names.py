"""Which names a step takes together, and what it calls what it gives."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from keepstep.config.mapper import Chunk, Concatenate, Drop, Leaf, Rename, Split, Stack, Unstack
from keepstep.config.pattern import NamePattern, name_pattern
from keepstep.plan.mapping import UNKNOWN, Value
from keepstep.plan.mapping_shapes import UnfitError, unstacked

_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
Complain = Callable[[str], None]


@dataclass(frozen=True)
class Match:
    """Names that one application of a step takes, and the names it gives.

    Attributes:
        complete: whether everything that it needs is there; if not, `takes` is what is.
    """

    takes: tuple[str, ...]
    gives: tuple[str, ...]
    complete: bool = True


def matches(step: Leaf, names: Mapping[str, Value], complain: Complain) -> Iterator[Match]:
    """Each application of a step to the names that are there.

    Args:
        step: the declaration.
        names: what is there.
        complain: is told of each name that is missing, and of a stack whose length is not what was declared.
    """
    match step:
        case Rename():
            for old, new in step.names.items():
                yield from _grouped((old,), (new,), names, complain)
        case Concatenate():
            yield from _grouped(step.take, (step.give,), names, complain)
        case Split() | Chunk():
            yield from _grouped((step.take,), step.give, names, complain)
        case Stack():
            yield from _stacks(step, names, complain)
        case Unstack():
            yield from _unstacks(step, names, complain)
        case _:
            for pattern in step.names:
                yield from _grouped((pattern,), () if isinstance(step, Drop) else (pattern,), names, complain)


def _grouped(texts: Sequence[str], gives: Sequence[str], names: Collection[str], complain: Complain) -> Iterator[Match]:
    """One match for each set of values that the placeholders have in any of the names."""
    first = name_pattern(texts[0])
    groups: dict[tuple[str, ...], dict[str, str]] = {}
    for text in texts:
        for values in _values_of(name_pattern(text), names):
            groups.setdefault(tuple(values[one] for one in first.placeholders), values)
    if not groups and first.placeholders:
        complain(f"no name matches {' or '.join(texts)}")
    elif not groups:
        groups[()] = {}
    for values in groups.values():
        takes = _filled(texts, values)
        missing = [name for name in takes if name not in names]
        for name in missing:
            complain(f"{name} is missing")
        yield Match(tuple(name for name in takes if name in names), _filled(gives, values), not missing)


def _values_of(pattern: NamePattern, names: Collection[str]) -> Iterator[dict[str, str]]:
    if not pattern.placeholders:
        if pattern.text in names:
            yield {}
        return
    for name in names:
        values = pattern.match(name)
        if values is not None:
            yield values


def _stacks(step: Stack, names: Collection[str], complain: Complain) -> Iterator[Match]:
    pattern = name_pattern(step.take)
    found = [(name, values) for name in names if (values := pattern.match(name)) is not None]
    if not found:
        complain(f"no name matches {step.take}")
    groups: dict[str, dict[int, dict[str, str]]] = {}
    for name, values in found:
        given = name_pattern(step.give).fill(values)
        index = values[step.index]
        if not _NUMBER.fullmatch(index):
            complain(f"{name}: {{{step.index}}} counts what is stacked, and {index} is no number")
            yield Match((name,), (), complete=False)
            continue
        groups.setdefault(given, {})[int(index)] = values
    for given, members in groups.items():
        some = next(iter(members.values()))
        declared = step.count or max(members) + 1
        there = tuple(_filled((step.take,), members[i])[0] for i in sorted(members))
        surplus = tuple(name for i, name in zip(sorted(members), there, strict=True) if i >= declared)
        # Where a number is far beyond what there is, the first names that are missing say enough.
        absent = [i for i in range(min(declared, 2 * len(members) + 1)) if i not in members]
        for i in absent:
            complain(f"{_filled((step.take,), {**some, step.index: str(i)})[0]} is missing")
        for name in surplus:
            complain(f"{name}: {given} takes {declared} tensors, counted from 0")
        yield Match(there, (given,), not absent and not surplus)


def _unstacks(step: Unstack, names: Mapping[str, Value], complain: Complain) -> Iterator[Match]:
    give = name_pattern(step.give)
    for match in _grouped((step.take,), (step.take,), names, complain):
        values = name_pattern(step.take).match(match.gives[0]) or {}
        spec = names[match.takes[0]].spec if match.complete else UNKNOWN
        try:
            count = (step.count or 0) if spec == UNKNOWN else unstacked(step, spec)
        except UnfitError as error:
            complain(f"{match.takes[0]}: {error}")
            yield Match(match.takes, (), complete=False)
            continue
        gives = tuple(give.fill({**values, step.index: str(i)}) for i in range(count))
        yield Match(match.takes, gives, match.complete)


def _filled(texts: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(name_pattern(text).fill(values) for text in texts)
