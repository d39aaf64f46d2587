"""Global names of parameters: no wrapper leaves a trace in them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from keepstep.errors import StateError

# DDP, torch.compile, FSDP1, activation checkpointing.
_WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside DDP, DataParallel and torch.compile."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.get_submodule("module")
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model.get_submodule("_orig_mod")
        else:
            return model


def clean_name(model: nn.Module, name: str) -> str:
    """A parameter's name without wrappers inside the model.

    A part such as `module` is taken out only where its owner has no other content, so that a submodule that a user
    named `module` keeps its name.
    """
    whole = name.split(".")
    if _WRAPPERS.isdisjoint(whole):
        return name
    parts, owner = [], model
    for part in whole:
        child = getattr(owner, part, None)
        if part in _WRAPPERS and isinstance(child, nn.Module) and _only_wraps(owner, part):
            owner = child
            continue
        parts.append(part)
        if isinstance(child, nn.Module):
            owner = child
    return ".".join(parts)


def _only_wraps(owner: nn.Module, part: str) -> bool:
    if part == "module":
        return isinstance(owner, nn.parallel.DistributedDataParallel | nn.DataParallel)
    return True


def named_tensors(models: Iterable[nn.Module]) -> Iterator[tuple[str, torch.Tensor | object]]:
    """Name and value of everything in the models' state_dict, parameters and tensors as they live in the model.

    Raises:
        StateError: two models use the same name.
    """
    seen: set[str] = set()
    for model in models:
        inner = unwrapped(model)
        yield from _named(inner, inner.state_dict(keep_vars=True), seen)


def _refuse_copies(model: nn.Module, held: Mapping[str, Any], parameters: Sequence[tuple[str, nn.Parameter]]) -> None:
    """Refuse a module whose state_dict holds other tensors than those it computes with: filling them changes nothing.

    Raises:
        StateError: names the first.
    """
    live = {id(parameter) for _, parameter in parameters} | {id(buffer) for buffer in model.buffers()}
    found = set()
    for name, value in held.items():
        found.add(id(value))
        if id(value) not in live and isinstance(value, torch.Tensor) and not name.endswith("_extra_state"):
            raise StateError(f"{name} in the model's state_dict is a copy or made by a hook; it could not be restored")
    for name, parameter in parameters:
        if id(parameter) not in found:
            raise StateError(f"the parameter {name} is not in the model's state_dict, so it would not be saved")


@dataclass(frozen=True)
class Names:
    """What the models hold, each thing once.

    Attributes:
        values: name to live tensor or extra state.
        aliases: other names of a tensor that has a name already.
        parameters: the name of each parameter.
    """

    values: dict[str, Any]
    aliases: dict[str, str]
    parameters: dict[nn.Parameter, str]

    def names_of(self, name: str) -> list[str]:
        """The other names of a value."""
        return [alias for alias, first in self.aliases.items() if first == name]


def names_of(models: Sequence[nn.Module], tied: Mapping[str, str] | None = None) -> Names:
    """Name everything that the models hold. A tensor with several names (tied weights) has the first of them.

    Args:
        models: the stages on this rank.
        tied: names of weights that are kept equal to another, whose own may live on another rank: alias to first name.

    Raises:
        StateError: two models use the same name.
    """
    declared = dict(tied or {})
    values: dict[str, Any] = {}
    aliases: dict[str, str] = {}
    first_of: dict[int, str] = {}
    parameters: dict[nn.Parameter, str] = {}
    seen: set[str] = set()
    for model in models:
        inner = unwrapped(model)
        held = inner.state_dict(keep_vars=True)
        for name, value in _named(inner, held, seen):
            target = declared.get(name, name)
            if isinstance(value, torch.Tensor):
                target = declared.get(first_of.setdefault(id(value), target), first_of[id(value)])
            if target != name:
                aliases[name] = target
            values.setdefault(target, value)
        own = list(inner.named_parameters(remove_duplicate=False))
        _refuse_copies(inner, held, own)
        for name, parameter in own:
            clean = clean_name(inner, name)
            parameters.setdefault(parameter, aliases.get(clean, clean))
    return Names(values, aliases, parameters)


def _named(inner: nn.Module, held: Mapping[str, Any], seen: set[str]) -> Iterator[tuple[str, Any]]:
    for name, value in held.items():
        clean = clean_name(inner, name)
        if clean in seen:
            raise StateError(f"two model stages hold the name {clean}; names must be global")
        seen.add(clean)
        yield clean, value


class NameBook:
    """The names of the stages' content, found out once for all parts that ask in one go.

    Args:
        models: the stages on this rank.
        tied: as of `names_of`.
    """

    def __init__(self, models: Sequence[nn.Module], tied: Mapping[str, str] | None = None) -> None:
        self._models, self._tied = models, tied
        self._latest: Names | None = None

    def look(self) -> Names:
        """As they are now."""
        self._latest = names_of(self._models, self._tied)
        return self._latest

    def latest(self) -> Names:
        """As somebody has found them last: the model's part is asked before the optimizer's."""
        return self._latest or self.look()
