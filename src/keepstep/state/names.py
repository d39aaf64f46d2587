"""Global names of parameters: no wrapper leaves a trace in them."""

from collections.abc import Iterable, Iterator

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
    parts, owner = [], model
    for part in name.split("."):
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
        for name, value in inner.state_dict(keep_vars=True).items():
            clean = clean_name(inner, name)
            if clean in seen:
                raise StateError(f"two model stages hold the name {clean}; names must be global")
            seen.add(clean)
            yield clean, value


def parameter_names(models: Iterable[nn.Module]) -> dict[nn.Parameter, str]:
    """The global name of each parameter. A shared parameter has its first name."""
    names: dict[nn.Parameter, str] = {}
    for model in models:
        inner = unwrapped(model)
        for name, parameter in inner.named_parameters():
            names.setdefault(parameter, clean_name(inner, name))
    return names
