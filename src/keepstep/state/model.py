"""The model stages: `model.<fqn>`."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from keepstep.dcp.entries import Entry, Stored
from keepstep.state.codec import decode, encode
from keepstep.state.component import LoadRequest, under
from keepstep.state.names import named_tensors, unwrapped

_EXTRA = "_extra_state"


class ModelComponent:
    """Parameters and persistent buffers of one model or of several stages, each filled in place.

    Args:
        stages: the modules; wrapped ones (DDP, compile, FSDP2) are fine.
        only_trainable: hold only parameters that require gradients; all else comes from elsewhere.
    """

    name = "model"

    def __init__(self, stages: Sequence[nn.Module], *, only_trainable: bool = False) -> None:
        self.stages = list(stages)
        self.only_trainable = only_trainable

    def collect(self) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        for name, value in self._held().items():
            key = f"{self.name}.{name}"
            if isinstance(value, torch.Tensor):
                entries[key] = Entry(value.detach())
            else:
                tensors: dict[str, torch.Tensor] = {}
                tree = encode(value, key, tensors)
                # A tensor that is the whole extra state is stored under the key itself.
                entries |= {k: Entry(t.detach()) for k, t in tensors.items()}
                if key not in tensors:
                    entries[key] = Entry(tree)
        return entries

    def request(self, stored: Mapping[str, Stored]) -> LoadRequest:
        request = LoadRequest()
        held = self._held()
        for name, value in held.items():
            key = f"{self.name}.{name}"
            if key not in stored:
                request.missing.append(f"{key} (a {'parameter or buffer' if _is_tensor(value) else 'value'})")
            elif isinstance(value, torch.Tensor):
                problem = _mismatch(value, stored[key])
                if problem:
                    request.missing.append(f"{key}: {problem}")
                request.tensors[key] = value.detach()
            else:
                request.trees.add(key)
        for key, what in under(self.name, stored).items():
            if f".{_EXTRA}." in key and what.shape is not None and what.dtype is not None:
                request.tensors[key] = torch.empty(what.shape, dtype=what.dtype)
        return request

    def apply(self, values: Mapping[str, Any]) -> None:
        # Tensors of the model were filled in place; only extra state is handed over.
        tensors = {key: value for key, value in values.items() if isinstance(value, torch.Tensor)}
        extra = {key: value for key, value in values.items() if key.endswith("." + _EXTRA) and key not in tensors}
        for key, tree in extra.items():
            path = key.removeprefix(self.name + ".").rpartition(".")[0]
            for stage in self.stages:
                owner = dict(unwrapped(stage).named_modules()).get(path)
                if owner is not None:
                    owner.set_extra_state(decode(tree, tensors))

    def _held(self) -> dict[str, Any]:
        """Name to live tensor or extra state."""
        return {
            name: value
            for name, value in named_tensors(self.stages)
            if not self.only_trainable or (isinstance(value, nn.Parameter) and value.requires_grad)
        }


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
