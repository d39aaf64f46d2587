"""The model stages: `model.<fqn>`."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from keepstep.dcp.entries import Entry, Scope, Stored, rank_key
from keepstep.state.codec import decode, encode
from keepstep.state.component import LoadRequest, under
from keepstep.state.frozen import FROZEN, FrozenRest
from keepstep.state.names import NameBook, Names, clean_name, unwrapped

logger = logging.getLogger("keepstep")

_EXTRA = "_extra_state"


class ModelComponent:
    """Parameters and persistent buffers of one model or of several stages, each filled in place.

    Args:
        stages: the modules; wrapped ones (DDP, compile, FSDP2) are fine.
        only_trainable: hold only parameters that require gradients or did so earlier; all else comes from elsewhere.
        with_buffers: with only_trainable, hold the buffers too.
        rank: whose buffers, where they differ between ranks.
        tied: names of weights that are kept equal to another's, which may live on another rank.
    """

    name = "model"

    def __init__(
        self,
        stages: Sequence[nn.Module],
        *,
        only_trainable: bool = False,
        with_buffers: bool = False,
        rank: int = 0,
        tied: Mapping[str, str] | None = None,
    ) -> None:
        self.stages = list(stages)
        self.tied = dict(tied or {})
        self.book = NameBook(self.stages, self.tied)
        self.only_trainable = only_trainable
        self._rank = rank
        self._rest = FrozenRest(with_buffers=with_buffers) if only_trainable else None
        if self._rest is not None:
            self._rest.held(self.names().values)  # what is trained now stays held when it is frozen later

    def collect(self) -> dict[str, Entry]:
        names = self.names()
        entries = self._rest.collect(names.values) if self._rest is not None else {}
        held = self._held(names)
        for alias, name in names.aliases.items():
            if name in held:
                entries[f"{self.name}.{alias}"] = Entry(None, same_as=f"{self.name}.{name}")
        for name, value in held.items():
            key = f"{self.name}.{name}"
            if isinstance(value, torch.Tensor) and not _is_extra(name):
                # Replicas update their buffers (BatchNorm's statistics) from their own samples.
                scope = Scope.EVERY_RANK if isinstance(value, nn.Parameter) else Scope.BUFFER
                entries[key] = Entry(value.detach(), scope)
            else:
                tensors: dict[str, torch.Tensor] = {}
                tree = encode(value, key, tensors)
                # A tensor that is the whole extra state is stored under the key itself.
                entries |= {k: Entry(t.detach()) for k, t in tensors.items()}
                if key not in tensors:
                    entries[key] = Entry(tree)
        return entries

    def request(self, stored: Mapping[str, Stored]) -> LoadRequest:
        # Buffers of other ranks stay unread; a rank that had none of its own takes the main process's.
        request = LoadRequest(exempt=set(under("buffers", stored)))
        names = self.names()
        if self._rest is not None:
            self._rest.request(names.values, stored, request)
        held = self._held(names)
        request.differing += _ties_that_differ(names, held, under(self.name, stored))
        for name, value in held.items():
            key = f"{self.name}.{name}"
            if key not in stored and f"{FROZEN}.{name}" in stored:
                logger.warning("%s was frozen when this was saved: it goes on from its present value", name)
            elif key not in stored:
                request.missing.append(f"{key} (a {'parameter or buffer' if _is_tensor(value) else 'value'})")
            elif _is_extra(name):
                what = stored[key]
                if what.shape is None or what.dtype is None:
                    request.trees.add(key)
                else:
                    request.tensors[key] = torch.empty(what.shape, dtype=what.dtype)
            elif isinstance(value, torch.Tensor):
                problem = _mismatch(value, stored[key])
                if problem:
                    request.differing.append(f"{key}: {problem}")
                own = rank_key(key, self._rank)
                request.tensors[own if own in stored else key] = value.detach()
                if own in stored:
                    request.exempt.add(key)
        for key, what in under(self.name, stored).items():
            if f".{_EXTRA}." in key and what.shape is not None and what.dtype is not None:
                request.tensors[key] = torch.empty(what.shape, dtype=what.dtype)
        return request

    def check(self, trees: Mapping[str, Any]) -> None:
        """Whether the frozen weights are those that the run was begun with. Shapes were compared in `request`."""
        if self._rest is not None:
            self._rest.check(self.names().values, trees)

    def apply(self, values: Mapping[str, Any]) -> None:
        # Parameters and buffers were filled in place. Extra state is handed over, also where it is a tensor: a module
        # may make that tensor anew at each call.
        tensors = {key: value for key, value in values.items() if isinstance(value, torch.Tensor)}
        owners = self._owners_of_extra_state()
        for key, value in values.items():
            name = key.removeprefix(self.name + ".")
            if name in owners:
                owners[name].set_extra_state(value if key in tensors else decode(value, tensors))

    def _owners_of_extra_state(self) -> dict[str, nn.Module]:
        owners: dict[str, nn.Module] = {}
        for stage in self.stages:
            inner = unwrapped(stage)
            for name, module in inner.named_modules():
                if type(module).get_extra_state is not nn.Module.get_extra_state:
                    path = clean_name(inner, f"{name}.{_EXTRA}" if name else _EXTRA)
                    owners.setdefault(path, module)
        return owners

    def prepare(self) -> None:
        """Digest what is frozen. Collective; called outside of phases that one rank may leave early."""
        if self._rest is not None:
            self._rest.prepare(self.names().values)

    def names(self) -> Names:
        """Everything in the stages by name."""
        return self.book.look()

    def _held(self, names: Names) -> dict[str, Any]:
        """Name to live tensor or extra state."""
        return names.values if self._rest is None else self._rest.held(names.values)


def _ties_that_differ(names: Names, held: Mapping[str, Any], stored: Mapping[str, Stored]) -> list[str]:
    """Weights that are one here and two in the checkpoint, or the other way round."""
    prefix = "model."
    problems = []
    for alias, name in names.aliases.items():
        alone = stored.get(prefix + alias)
        if name in held and alone is not None and prefix + name not in alone.names:
            problems.append(f"{prefix}{alias}: tied to {name} in the model, on its own in the checkpoint")
    for name in held:
        what = stored.get(prefix + name)
        for other in sorted(what.names if what is not None else ()):
            if other > prefix + name and other.removeprefix(prefix) in held:
                problems.append(
                    f"{prefix}{name}: tied to {other.removeprefix(prefix)} in the checkpoint, apart in the model"
                )
    return problems


def _is_extra(name: str) -> bool:
    return name.rpartition(".")[2] == _EXTRA


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _mismatch(tensor: torch.Tensor, stored: Stored) -> str:
    if not stored.is_tensor:
        return "the checkpoint holds no tensor there"
    if stored.shape != tensor.shape:
        return f"shape {tuple(stored.shape or ())} in the checkpoint, {tuple(tensor.shape)} in the model"
    if stored.dtype != tensor.dtype:
        return f"dtype {stored.dtype} in the checkpoint, {tensor.dtype} in the model"
    return ""
