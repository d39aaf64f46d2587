"""Objects with `state_dict` and `load_state_dict`: scheduler, task, metrics, tracker, and data loaders."""

import logging
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch.distributed.tensor import DTensor

from keepstep.dcp.entries import Entry, Scope, Stored
from keepstep.state.codec import decode, encode
from keepstep.state.component import LoadRequest, under

logger = logging.getLogger("keepstep")

# The key of a state that is not a dict with names for keys.
_WHOLE = "__value__"
# The key of the names of a dict, in its order: what reads a folder may give its keys in any order.
_NAMES = "__names__"


@runtime_checkable
class Stateful(Protocol):
    """What keepstep asks of an object: these two methods, nothing else."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any, /) -> Any: ...


class PerRank:
    """Marks an object whose state belongs to its rank: each rank gets its own back.

    Without it every rank must hold the same state, and a difference is an error.
    """

    def __init__(self, inner: Stateful) -> None:
        self.inner = inner


class StatefulComponent:
    """One object's state under `<prefix>.*`: a key for each entry of its state_dict.

    Args:
        name: the component's name.
        inner: the object.
        prefix: where its keys lie; a prefix that names the rank makes the state the rank's own.
        scope: whose value counts.
        ranks: of state of the rank's own, how many ranks there are.
    """

    def __init__(
        self,
        name: str,
        inner: Stateful,
        prefix: str | None = None,
        scope: Scope = Scope.EVERY_RANK,
        ranks: int | None = None,
    ) -> None:
        self.name = name
        self._ranks = ranks
        self.inner = inner
        self._prefix = prefix or name
        self._scope = scope

    def collect(self) -> dict[str, Entry]:
        return collect_state(self.inner.state_dict(), self._prefix, self._scope)

    def request(self, stored: Mapping[str, Stored]) -> LoadRequest:
        if self._ranks is not None and self._prefix == f"{self.name}.rank_0":
            numbers = {key.split(".")[1].removeprefix("rank_") for key in under(self.name, stored)}
            gone = sorted(int(number) for number in numbers if number.isdigit() and int(number) >= self._ranks)
            if gone:
                logger.warning(
                    "%s: the state of rank %s is not taken, this job has %d ranks; what it held is lost to the run",
                    self.name,
                    ", ".join(map(str, gone)),
                    self._ranks,
                )
        return request_state(self._prefix, stored, self.inner)

    def check(self, trees: Mapping[str, Any]) -> None:
        """An object of a user's takes its state as it is."""

    def apply(self, values: Mapping[str, Any]) -> None:
        self.inner.load_state_dict(restore_state(self._prefix, values))


def collect_state(state: Any, prefix: str, scope: Scope) -> dict[str, Entry]:
    """A state_dict as entries. Raises UnsupportedStateError, with the path, for what cannot be stored."""
    named = {_NAMES: list(state), **state} if _has_names(state) else {_WHOLE: state}
    entries: dict[str, Entry] = {}
    for name, value in named.items():
        key = f"{prefix}.{name}"
        tensors: dict[str, torch.Tensor] = {}
        tree = encode(value, key, tensors)
        new = {k: Entry(t.detach(), scope) for k, t in tensors.items()}
        if key not in tensors:
            new[key] = Entry(tree, scope)
        for clash in new.keys() & entries.keys():
            raise ValueError(f"two values would be stored under the name {clash}")
        entries |= new
    return entries


def request_state(prefix: str, stored: Mapping[str, Stored], inner: Stateful) -> LoadRequest:
    """Ask for everything under a prefix; DTensors that the object holds now say how theirs are laid out."""
    request = LoadRequest()
    keys = under(prefix, stored)
    if not keys or not {f"{prefix}.{_NAMES}", f"{prefix}.{_WHOLE}"} & keys.keys():
        request.missing.append(f"{prefix}.* (the state of a {type(inner).__name__})")
    templates: dict[str, Entry] = {}
    if any(what.is_tensor for what in keys.values()):
        templates = collect_state(inner.state_dict(), prefix, Scope.EVERY_RANK)
    for key, what in keys.items():
        if what.shape is None or what.dtype is None:
            request.trees.add(key)
            continue
        template = templates[key].value if key in templates else None
        if isinstance(template, DTensor) and template.shape == what.shape:
            request.tensors[key] = torch.empty_like(template, dtype=what.dtype)
        else:
            device = template.device if isinstance(template, torch.Tensor) else None
            request.tensors[key] = torch.empty(what.shape, dtype=what.dtype, device=device)
    return request


def restore_state(prefix: str, values: Mapping[str, Any]) -> Any:
    """The state_dict that was saved under a prefix."""
    own = {key: value for key, value in values.items() if key.startswith(prefix + ".")}
    tensors = {key: value for key, value in own.items() if isinstance(value, torch.Tensor)}

    def value_of(name: str) -> Any:
        key = f"{prefix}.{name}"
        return tensors[key] if key in tensors else decode(own[key], tensors)

    if f"{prefix}.{_WHOLE}" in own:
        return value_of(_WHOLE)
    return {name: value_of(name) for name in value_of(_NAMES)}


def _has_names(state: Any) -> bool:
    """Whether a state is a dict whose keys can stand in global names. An empty one is stored as a whole."""
    return (
        type(state) is dict
        and bool(state)
        and all(type(key) is str and key for key in state)
        and not {_WHOLE, _NAMES} & set(state)
    )
