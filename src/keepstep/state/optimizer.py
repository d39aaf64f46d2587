"""Optimizers by parameter name: `optimizer.state.<fqn>.<slot>` and `optimizer.param_groups.<fqn>.<option>`."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from keepstep.dcp.entries import Entry, Stored
from keepstep.errors import StateError, StateMismatchError, UnsupportedStateError
from keepstep.state.codec import decode, encode, tensor_keys
from keepstep.state.component import LoadRequest, under
from keepstep.state.frozen import FROZEN
from keepstep.state.names import Names

logger = logging.getLogger("keepstep")

NamesOf = Callable[[], Names]


# How a step is computed, and not what: it depends on the device and the layout, so the present ones count.
_HOW = frozenset({"foreach", "fused", "capturable", "differentiable"})
# Which parameters a group holds; they have names of their own here.
_NAMING = frozenset({"params", "param_names"})
_SHOWN = 8
# Options of a parameter group that learning-rate schedulers set.
_SET_BY_SCHEDULERS = frozenset({"lr", "initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum"})


class OptimizerComponent:
    """The state of one or several optimizers, addressed by the names of their parameters, never by position.

    Filling goes straight into `optimizer.state`: no step is taken, so no weight moves; and slots are made from what
    the checkpoint holds, so the moments arrive in an optimizer that has never stepped.

    Args:
        optimizers: one or several.
        names_of: the present names of the parameters.
        moved: options that a scheduler moves: that these differ from the present ones is no change of settings.
    """

    name = "optimizer"

    def __init__(
        self, optimizers: Sequence[torch.optim.Optimizer], names_of: NamesOf, moved: frozenset[str] = frozenset()
    ) -> None:
        self.optimizers = list(optimizers)
        self._moved = moved
        self._names_of = names_of
        self._found: dict[str, set[str]] = {}

    def collect(self) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        names = self._names_of()
        for optimizer, group, parameter, fqn in self._parameters():
            own: dict[str, Entry] = {}
            slots = optimizer.state.get(parameter, {})
            odd = [slot for slot in slots if not isinstance(slot, str)]
            if odd:
                raise UnsupportedStateError(f"{self.name}.state.{fqn} has the slot {odd[0]!r}; names must be text")
            self._put(own, f"{self.name}.slots.{fqn}", sorted(map(str, slots)))
            for slot, value in slots.items():
                self._put(own, f"{self.name}.state.{fqn}.{slot}", value)
            for option, value in group.items():
                if option not in _NAMING:
                    self._put(own, f"{self.name}.param_groups.{fqn}.{option}", value)
            for clash in own.keys() & entries.keys():
                raise StateError(f"{clash} would be stored twice: two optimizers hold this parameter")
            entries |= own
            for alias in names.names_of(fqn):
                entries |= {self._renamed(key, fqn, alias): Entry(None, same_as=key) for key in own}
        return entries

    def _renamed(self, key: str, name: str, other: str) -> str:
        """The same key of another parameter: `optimizer.<part>.<name>` with what follows."""
        part = key.removeprefix(f"{self.name}.").split(".")[0]
        prefix = f"{self.name}.{part}."
        return f"{prefix}{other}{key.removeprefix(prefix + name)}"

    def request(self, stored: Mapping[str, Stored]) -> LoadRequest:
        request = LoadRequest()
        names = list(self._names_of().parameters.values())
        by_prefix = _grouped(under(f"{self.name}.state", stored), self.name + ".state.", names)
        options = _grouped(under(f"{self.name}.param_groups", stored), self.name + ".param_groups.", names)
        self._found = {fqn: set(slots) for fqn, slots in by_prefix.items()}
        for _, group, parameter, fqn in self._parameters():
            if fqn not in options and f"{FROZEN}.{fqn}" in stored:
                continue  # it was frozen then, and has no moments yet
            if fqn not in options:
                request.missing.append(f"{self.name}.param_groups.{fqn} (options of a parameter)")
                continue
            slots_key = f"{self.name}.slots.{fqn}"
            if slots_key in stored:
                request.trees.add(slots_key)
            else:
                request.missing.append(f"{slots_key} (which moments there are)")
            saved, present = set(options[fqn]), set(group) - _NAMING
            if saved - present - _SET_BY_SCHEDULERS and present - saved - _SET_BY_SCHEDULERS:
                raise StateMismatchError(
                    f"the optimizer of {fqn} was of another kind when this was saved: it had the options "
                    f"{', '.join(sorted(saved - present))}, this one has {', '.join(sorted(present - saved))}"
                )
            for key in options[fqn].values():
                _ask(request, key, stored[key])
            for slot, key in by_prefix.get(fqn, {}).items():
                _ask(request, key, stored[key], parameter, on_device=slot != "step" or _keeps_step_on_device(group))
        return request

    def check(self, trees: Mapping[str, Any]) -> None:
        names = self._names_of().parameters
        self._check_slots(trees)
        options = _grouped(trees, self.name + ".param_groups.", list(names.values()))
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                found: dict[str, str] = {}
                for parameter in group["params"]:
                    for option, key in options.get(names[parameter], {}).items():
                        first = found.setdefault(option, key)
                        if trees[first] != trees[key]:
                            raise StateMismatchError(
                                f"{key} is {trees[key]!r}, and {first} of the same group is {trees[first]!r}: the "
                                "parameters were grouped in another way when this was saved"
                            )

    def _check_slots(self, trees: Mapping[str, Any]) -> None:
        prefix = f"{self.name}.slots."
        gone = []
        for key in (key for key in trees if key.startswith(prefix)):
            name = key.removeprefix(prefix)
            found = [slot.split(".")[0] for slot in self._found.get(name, ())]
            gone += [f"{self.name}.state.{name}.{slot}" for slot in trees[key] if slot.split(".")[0] not in found]
        if gone:
            raise StateMismatchError(f"the checkpoint lacks moments that were saved: {', '.join(gone[:_SHOWN])}")

    def apply(self, values: Mapping[str, Any]) -> None:
        names = list(self._names_of().parameters.values())
        # Tensors inside a list or dict have keys of their own; they come back through the value that holds them.
        inside = {key for value in values.values() if not isinstance(value, torch.Tensor) for key in tensor_keys(value)}
        own = {key: value for key, value in values.items() if key not in inside}
        state = _grouped(own, self.name + ".state.", names)
        options = _grouped(own, self.name + ".param_groups.", names)
        tensors = {key: value for key, value in values.items() if isinstance(value, torch.Tensor)}

        def value_of(key: str) -> Any:
            return values[key] if key in tensors else decode(values[key], tensors)

        for optimizer, _, parameter, fqn in self._parameters():
            slots = {slot: value_of(key) for slot, key in state.get(fqn, {}).items()}
            if slots:
                optimizer.state[parameter] = slots
            else:
                optimizer.state.pop(parameter, None)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                self._apply_options(group, options, value_of)

    def _apply_options(
        self, group: dict[str, Any], options: Mapping[str, Mapping[str, str]], value_of: Callable[[str], Any]
    ) -> None:
        names = self._names_of().parameters
        found: dict[str, Any] = {}
        for parameter in group["params"]:
            for option, key in options.get(names[parameter], {}).items():
                found.setdefault(option, value_of(key))
        for option, value in found.items():
            if option in _HOW:
                continue
            present = group.get(option)
            if option not in self._moved and option in group and not _same(present, value):
                logger.warning(
                    "optimizer option %s is %r in the checkpoint and %r in this job: the checkpoint's counts",
                    option,
                    value,
                    present,
                )
            if isinstance(present, torch.Tensor) and isinstance(value, torch.Tensor):
                present.copy_(value)  # captured graphs and schedulers hold on to the tensor
            else:
                group[option] = value

    def _put(self, entries: dict[str, Entry], key: str, value: Any) -> None:
        tensors: dict[str, torch.Tensor] = {}
        tree = encode(value, key, tensors)
        new = {name: Entry(tensor.detach()) for name, tensor in tensors.items()}
        if key not in tensors:
            new[key] = Entry(tree)
        for clash in new.keys() & entries.keys():
            raise UnsupportedStateError(f"two values would be stored under the name {clash}")
        entries |= new

    def _parameters(self) -> Iterator[tuple[torch.optim.Optimizer, dict[str, Any], nn.Parameter, str]]:
        names = self._names_of().parameters
        for optimizer in self.optimizers:
            stray = [key for key in optimizer.state if key not in names]
            if stray:
                what = "a parameter of no registered model" if isinstance(stray[0], nn.Parameter) else repr(stray[0])
                raise StateError(f"the optimizer holds state for {what}, which has no name to be stored under")
            for number, group in enumerate(optimizer.param_groups):
                for position, parameter in enumerate(group["params"]):
                    if parameter not in names:
                        raise StateError(
                            f"parameter {position} of group {number} of the optimizer (shape "
                            f"{tuple(parameter.shape)}) belongs to no registered model; pass its module as model="
                        )
                    yield optimizer, group, parameter, names[parameter]


def _grouped(keys: Mapping[str, Any], prefix: str, names: Any) -> dict[str, dict[str, str]]:
    """Parameter name to slot or option to key. The longest parameter name that fits a key owns it."""
    known = set(names)
    grouped: dict[str, dict[str, str]] = {}
    for key in keys:
        if not key.startswith(prefix):
            continue
        rest = key.removeprefix(prefix)
        cut = len(rest)
        while (cut := rest.rfind(".", 0, cut)) > 0:
            if rest[:cut] in known:
                grouped.setdefault(rest[:cut], {})[rest[cut + 1 :]] = key
                break
    return grouped


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor) or isinstance(second, torch.Tensor):
        return isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor) and torch.equal(first, second)
    return bool(first == second)


def _ask(
    request: LoadRequest, key: str, stored: Stored, like: nn.Parameter | None = None, *, on_device: bool = False
) -> None:
    """Request one slot. A slot of the parameter's own shape lives where and how the parameter does.

    Of the others torch keeps the step count on the CPU unless the optimizer is fused or captured, and all else beside
    the parameter (`Optimizer._process_value_according_to_param_policy`).
    """
    if stored.shape is None or stored.dtype is None:
        request.trees.add(key)
    elif like is not None and stored.shape == like.shape and on_device:
        request.tensors[key] = torch.empty_like(like.detach(), dtype=stored.dtype)
    elif isinstance(like, DTensor) and stored.shape.numel() > 1:
        raise StateMismatchError(
            f"{key} has shape {tuple(stored.shape)}, its parameter {tuple(like.shape)}: how such a slot is sharded is "
            "not known; this optimizer cannot be restored on a sharded model"
        )
    else:
        device = like.device if like is not None and on_device else None
        request.tensors[key] = torch.empty(stored.shape, dtype=stored.dtype, device=device)


def _keeps_step_on_device(group: Mapping[str, Any]) -> bool:
    return bool(group.get("fused") or group.get("capturable"))
