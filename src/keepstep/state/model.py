"""The model stages: `model.<fqn>`."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from keepstep.dcp.entries import Entry, Scope, Stored, rank_key
from keepstep.state.codec import decode, encode
from keepstep.state.component import LoadRequest, under
from keepstep.state.names import clean_name, named_tensors, unwrapped

_EXTRA = "_extra_state"


class ModelComponent:
    """Parameters and persistent buffers of one model or of several stages, each filled in place.

    Args:
        stages: the modules; wrapped ones (DDP, compile, FSDP2) are fine.
        only_trainable: hold only parameters that require gradients; all else comes from elsewhere.
        rank: whose buffers, where they differ between ranks.
    """

    name = "model"

    def __init__(self, stages: Sequence[nn.Module], *, only_trainable: bool = False, rank: int = 0) -> None:
        self.stages = list(stages)
        self.only_trainable = only_trainable
        self._rank = rank

    def collect(self) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        for name, value in self._held().items():
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
        held = self._held()
        for name, value in held.items():
            key = f"{self.name}.{name}"
            if key not in stored:
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
        """Shapes and dtypes were compared in `request`; there is nothing more to look at."""

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

    def _held(self) -> dict[str, Any]:
        """Name to live tensor or extra state."""
        return {
            name: value
            for name, value in named_tensors(self.stages)
            if not self.only_trainable or (isinstance(value, nn.Parameter) and value.requires_grad)
        }


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
