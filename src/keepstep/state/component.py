"""What every part of a job's state can do: give its entries, ask for them back, and take them over."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from keepstep.dcp.entries import Entry, Stored
from keepstep.errors import UnsupportedStateError


@dataclass
class LoadRequest:
    """What a component takes from a checkpoint.

    Attributes:
        tensors: key to the tensor that is filled, in place.
        trees: keys of Python trees that are read.
        missing: what the component needs and the checkpoint lacks, in words.
        differing: what both have, and cannot be put into the other, in words.
        exempt: keys that may stay unread.
    """

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    trees: set[str] = field(default_factory=set)
    missing: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    exempt: set[str] = field(default_factory=set)


class Saveable(Protocol):
    """What can be saved."""

    name: str

    def collect(self) -> dict[str, Entry]:
        """Everything to save, now. Changes nothing and draws no random number."""


class Component(Saveable, Protocol):
    """One part of a job's state. Keys are global: they begin with the component's name."""

    def request(self, stored: Mapping[str, Stored]) -> LoadRequest:
        """What to read, given all keys of a checkpoint. Changes nothing; StateMismatchError is for what cannot be."""

    def check(self, trees: Mapping[str, Any]) -> None:
        """Look at the requested Python trees before anything changes. StateMismatchError is for what does not fit."""

    def apply(self, values: Mapping[str, Any]) -> None:
        """Take over what was requested: key to filled tensor or Python tree."""


def under(prefix: str, stored: Mapping[str, Stored]) -> dict[str, Stored]:
    """The entries whose key begins with `prefix` and a dot."""
    return {key: value for key, value in stored.items() if key.startswith(prefix + ".")}


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def refuse_unstorable(key: str, value: Any) -> None:
    """Refuse a tensor whose elements are not its whole content. Raises UnsupportedStateError with its key."""
    if not isinstance(value, torch.Tensor):
        return
    is_usual = type(value) in _PLAIN and value.layout is torch.strided and value.device.type == "cpu"
    if is_usual and not value.is_nested and not value.is_quantized:
        return
    kind = ""
    if isinstance(value, DTensor):
        kind = "a partial sum that the ranks have not added up" if any(p.is_partial() for p in value.placements) else ""
    elif value.layout is not torch.strided or value.is_nested:
        kind = "sparse or nested"
    elif value.is_quantized:
        kind = "quantized"
    elif value.device.type == "meta":
        kind = "on the meta device, without any values"
    elif is_traceable_wrapper_subclass(value):
        kind = f"a {type(value).__name__}, which wraps other tensors"
    if kind:
        raise UnsupportedStateError(f"{key} is {kind}; only dense tensors with their values can be stored")
