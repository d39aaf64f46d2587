"""Plans a model state mapper: which tensors it reads, what becomes of each, and everything that does not fit."""

from collections.abc import Mapping
from functools import partial

from keepstep.config.mapper import Composite, Graph, Leaf, Parallel, Scope, Select, Sequence
from keepstep.config.pattern import name_pattern
from keepstep.errors import ConfigError
from keepstep.plan.mapping import UNKNOWN, MappingPlan, Operation, TensorSpec, Value
from keepstep.plan.mapping_names import Match, matches
from keepstep.plan.mapping_order import in_order, takes
from keepstep.plan.mapping_shapes import UnfitError, specs_after

_MOST_PROBLEMS = 20
_Names = dict[str, Value]


def plan_mapping(steps: tuple[Leaf | Composite, ...], specs: Mapping[str, TensorSpec]) -> MappingPlan:
    """What the steps, one after another, make of tensors with these names, shapes and dtypes.

    Raises:
        ConfigError: a line for each name that no step takes, that is made twice or is missing, for each step that
            cannot take a shape or dtype, and for steps that need each other in a circle.
    """
    planner = _Planner()
    names = {name: planner.value(name, spec) for name, spec in specs.items()}
    before = dict(names)
    for i, step in enumerate(steps):
        names = planner.apply(step, names, f"steps.{i} {step.kind}", "")
    for name, value in names.items():
        if value is before.get(name):
            planner.problems.append(f"{name} is unread: no step takes it")
    if planner.problems:
        shown = planner.problems[:_MOST_PROBLEMS]
        rest = len(planner.problems) - len(shown)
        raise ConfigError("\n".join([*shown, *([f"and {rest} more problems"] if rest else [])]))
    needed = {value.id for value in names.values()}
    operations: list[Operation] = []
    for operation in reversed(planner.operations):
        if any(one.id in needed for one in operation.gives):
            operations.append(operation)
            needed |= {one.id for one in operation.takes}
    return MappingPlan(
        sources=tuple(one for one in before.values() if one.id in needed),
        operations=tuple(reversed(operations)),
        outputs=tuple(Value(one.id, name, one.spec) for name, one in names.items()),
        dropped=tuple(one.name for one in before.values() if one.id not in needed),
    )


class _Planner:
    """Applies steps to names. What does not fit is noted, and planning goes on without it."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.operations: list[Operation] = []
        self._count = 0

    def value(self, name: str, spec: TensorSpec) -> Value:
        self._count += 1
        return Value(self._count, name, spec)

    def apply(self, step: Leaf | Composite, names: _Names, at: str, prefix: str) -> _Names:
        """The names after a step. `prefix` is what scopes have taken from their beginning."""
        match step:
            case Sequence():
                return self._sequence(step.steps, range(len(step.steps)), names, at, prefix)
            case Graph():
                return self._sequence(step.steps, in_order(step, at), names, at, prefix)
            case Parallel():
                return self._parallel(step, names, at, prefix)
            case Scope():
                return self._scope(step, names, at, prefix)
            case _:
                return self._leaf(step, names, at, prefix)

    def _sequence(
        self, steps: tuple[Leaf | Composite, ...], order: range | list[int], names: _Names, at: str, prefix: str
    ) -> _Names:
        for i in order:
            names = self.apply(steps[i], names, _inner(at, i, steps[i]), prefix)
        return names

    def _parallel(self, step: Parallel, names: _Names, at: str, prefix: str) -> _Names:
        taken: set[str] = set()
        made: list[_Names] = []
        for i, inner in enumerate(step.steps):
            # What it does not take is not in the way of what it gives: another may take that.
            own = _only(takes(inner), names)
            after = self.apply(inner, own, _inner(at, i, inner), prefix)
            taken |= {name for name, value in own.items() if after.get(name) is not value}
            made.append({name: value for name, value in after.items() if own.get(name) is not value})
        result = {name: value for name, value in names.items() if name not in taken}
        for one in made:
            self._add(result, one, at, prefix)
        return result

    def _scope(self, step: Scope, names: _Names, at: str, prefix: str) -> _Names:
        pattern, target = name_pattern(step.prefix), name_pattern(step.target)
        inside: dict[str, _Names] = {}
        targets: dict[str, str] = {}
        result: _Names = {}
        for name, value in names.items():
            found = pattern.match_prefix(name)
            if found is None:
                result[name] = value
                continue
            inside.setdefault(found[0], {})[name.removeprefix(found[0])] = value
            targets[found[0]] = target.fill(found[1])
        if not inside:
            self.problems.append(f"{at}: no name begins with {prefix}{step.prefix}")
        for own, before in inside.items():
            # What no inner step has taken keeps its name; everything else has passed through the new prefix.
            after = before
            for i, inner in enumerate(step.steps):
                after = self.apply(inner, after, _inner(at, i, inner), prefix + own)
            untouched = {own + name: value for name, value in after.items() if before.get(name) is value}
            made = {targets[own] + name: value for name, value in after.items() if before.get(name) is not value}
            self._add(result, untouched, at, prefix)
            self._add(result, made, at, prefix)
        return result

    def _leaf(self, step: Leaf, names: _Names, at: str, prefix: str) -> _Names:
        taken: set[str] = set()
        made: _Names = {}
        for match in matches(step, names, partial(self._complain, at, prefix)):
            again = [name for name in match.takes if name in taken]
            for name in again:
                self._complain(at, prefix, f"{name} is taken twice")
            if again:
                continue
            taken |= set(match.takes)
            for value in self._operate(step, match, names, at, prefix):
                self._add(made, {value.name.removeprefix(prefix): value}, at, prefix)
        if isinstance(step, Select):
            return made
        result = {name: value for name, value in names.items() if name not in taken}
        self._add(result, made, at, prefix)
        return result

    def _operate(self, step: Leaf, match: Match, names: _Names, at: str, prefix: str) -> tuple[Value, ...]:
        taken = tuple(names[name] for name in match.takes)
        specs = (UNKNOWN,) * len(match.gives)
        if match.complete and all(one.spec != UNKNOWN for one in taken):
            try:
                specs = specs_after(step, [one.spec for one in taken])
            except UnfitError as error:
                self._complain(at, prefix, f"{', '.join(match.takes)}: {error}")
        gives = tuple(self.value(prefix + name, spec) for name, spec in zip(match.gives, specs, strict=True))
        if gives and taken:
            self.operations.append(Operation(step, at, taken, gives))
        return gives

    def _add(self, names: _Names, made: _Names, at: str, prefix: str) -> None:
        for name, value in made.items():
            if name in names:
                self._complain(at, prefix, f"{name} is made twice")
            names[name] = value

    def _complain(self, at: str, prefix: str, problem: str) -> None:
        self.problems.append(f"{at}{f' under {prefix}' if prefix else ''}: {problem}")


def _only(patterns: tuple[str, ...], names: _Names) -> _Names:
    """The names that match any of the patterns."""
    exact = set(patterns)
    others = [pattern for text in exact if (pattern := name_pattern(text)).placeholders]
    return {
        name: value
        for name, value in names.items()
        if name in exact or any(one.match(name) is not None for one in others)
    }


def _inner(at: str, i: int, step: Leaf | Composite) -> str:
    place, _, kind = at.rpartition(" ")
    return f"{place or kind}.{i} {step.kind}"
