"""Lets a Trainer write its checkpoint into memory: tensors are copied, and files are written later, from the copies.

While the body of `capturing` runs, `torch.save` and safetensors' `save_file` copy what they are given and return. What
the Trainer writes by other means (configurations, tokenizer, its state as JSON) is small and is written at once.
"""

import os
import sys
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

# Modules that have taken `save_file` under a name of their own.
_HOLDERS = (
    ("safetensors.torch", "save_file"),
    ("transformers.modeling_utils", "safe_save_file"),
    ("peft.peft_model", "safe_save_file"),
)


_DICTS = (dict, OrderedDict, defaultdict)
_UNCHANGING = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
# One at a time in a process: what is replaced belongs to all of it.
_LOCK = threading.RLock()


@dataclass
class Pool:
    """Host tensors that are filled anew by every save: memory that was touched once is many times as fast to fill."""

    _tensors: list[torch.Tensor] = field(default_factory=list)
    _used: int = 0

    def begin(self) -> None:
        """A new save begins; nobody may read the copies of the last one any more."""
        self._used = 0

    def copy(self, source: torch.Tensor) -> torch.Tensor:
        """A copy of a dense tensor in host memory, of the same shape, strides apart."""
        if self._used == len(self._tensors):
            self._tensors.append(torch.empty(0, dtype=source.dtype))
        held = self._tensors[self._used]
        if held.dtype != source.dtype or held.shape != source.shape:
            held = self._tensors[self._used] = torch.empty(source.shape, dtype=source.dtype)
        self._used += 1
        held.copy_(source.detach())
        return held

    def release(self) -> None:
        """Give the memory back."""
        self._tensors.clear()
        self._used = 0


class Captured:
    """Files that were asked for and are not written yet."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._writes: list[Callable[[], None]] = []
        self._copies: dict[tuple[Any, ...], torch.Tensor] = {}
        # A tensor that is gone may have left its address to another one.
        self._sources: list[torch.Tensor] = []
        pool.begin()

    def write(self) -> None:
        """Write them. Raises what the writers raise: OSError, or RuntimeError of torch for a full disk."""
        for write in self._writes:
            write()
        self._writes.clear()

    def end(self) -> None:
        """All that is to be written was asked for."""
        self._copies.clear()
        self._sources.clear()

    def later(self, write: Callable[[], None]) -> None:
        """Write this too, later."""
        self._writes.append(write)

    def add(self, write: Callable[[Any], None], value: Any) -> None:
        """Copy a value now, and hand the copy to `write` later."""
        copied = self._copied(value)
        self._writes.append(lambda: write(copied))

    def _copied(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._copied_tensor(value)
        if type(value) in _DICTS:
            copied = value.copy()
            for name, held in value.items():
                copied[name] = self._copied(held)
            return copied
        if type(value) in (list, tuple):
            return type(value)(self._copied(held) for held in value)
        return value

    def _copied_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is not torch.strided or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return tensor.detach().cpu().clone()
        # Tied weights are copied once. A tensor of a parent's storage is a tensor of its own afterwards.
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        if not tensor.numel() or key not in self._copies:
            self._copies[key] = self._pool.copy(tensor)
            self._sources.append(tensor)
        return self._copies[key]


def _can_be_copied(value: Any) -> bool:
    """Whether a copy is all of it: anything else is written at once, since it may change before its turn comes."""
    if isinstance(value, torch.Tensor):
        return type(value) in (torch.Tensor, torch.nn.Parameter)
    if type(value) in _DICTS:
        return all(map(_can_be_copied, value.values()))
    return all(map(_can_be_copied, value)) if type(value) in (list, tuple) else isinstance(value, _UNCHANGING)


@contextmanager
def capturing(pool: Pool) -> Iterator[Captured]:
    """Copy what the body of this thread saves through torch or safetensors, in place of writing it.

    Yields:
        What is to be written. It is complete when the body is over.
    """
    with _LOCK:
        yield from _capturing(pool)


def _capturing(pool: Pool) -> Iterator[Captured]:
    captured, own = Captured(pool), threading.get_ident()
    save = torch.save
    originals = [
        (sys.modules[module], name, getattr(sys.modules[module], name))
        for module, name in _HOLDERS
        if module in sys.modules and hasattr(sys.modules[module], name)
    ]

    def save_later(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if threading.get_ident() != own or not isinstance(f, str | os.PathLike) or not _can_be_copied(obj):
            save(obj, f, *args, **kwargs)
            return
        captured.add(lambda copied: save(copied, f, *args, **kwargs), obj)

    def later(save_file: Callable[..., None]) -> Callable[..., None]:
        def save_file_later(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> None:
            if threading.get_ident() != own or not _can_be_copied(dict(tensors)):
                save_file(tensors, filename, *args, **kwargs)
                return
            captured.add(lambda copied: save_file(copied, filename, *args, **kwargs), dict(tensors))

        return save_file_later

    torch.save = save_later
    for module, name, original in originals:
        setattr(module, name, later(original))
    try:
        yield captured
    finally:
        captured.end()
        torch.save = save
        for module, name, original in originals:
            setattr(module, name, original)
