"""Where exported weights come from: a checkpoint, and a model state for what a trainable-only checkpoint lacks."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from keepstep.dcp.entries import Stored
from keepstep.dcp.reader import fill_boxes
from keepstep.dcp.regions import Box
from keepstep.dcp.source import Source
from keepstep.errors import ConfigError
from keepstep.export.source import find_files
from keepstep.state.component import under

# What is wanted of an origin: a name, a part of that tensor, and the memory to fill, of that shape and dtype.
Wanted = tuple[str, Box, torch.Tensor]
_FROZEN = "frozen"
_SHOWN = 5


@dataclass(frozen=True)
class Weight:
    """A tensor that is to be exported: its form where it lies, and its other names."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    names: tuple[str, ...] = ()


class Origin(Protocol):
    """Has weights, and gives any part of them."""

    weights: dict[str, Weight]

    def fill(self, wanted: Sequence[Wanted]) -> None:
        """Fill memory with parts of the weights."""


class CheckpointOrigin:
    """The tensors of a checkpoint whose keys begin with a prefix, by the rest of the key, in the checkpoint's order.

    Tensors that lie at one place are one weight: it has the name that the model came to first.

    Args:
        source: the checkpoint.
        prefix: `model`, or what else begins the keys of a set of weights; without the dot behind it.

    Raises:
        ConfigError: nothing lies there.
    """

    def __init__(self, source: Source, prefix: str) -> None:
        self._source, self._prefix = source, prefix
        stored = source.stored()
        held = {key: what for key, what in under(prefix, stored).items() if what.shape is not None}
        if not held:
            raise ConfigError(_nothing_there(source.folder, prefix, stored))
        self.weights: dict[str, Weight] = {}
        seen: set[str] = set()
        for key, what in held.items():
            if key in seen or what.shape is None or what.dtype is None:
                continue
            others = [name for name in held if name in what.names and name != key]
            seen.update(others)
            names = tuple(self._name(other) for other in others)
            self.weights[self._name(key)] = Weight(what.dtype, tuple(what.shape), names)

    def lacking(self) -> list[str]:
        """Names of frozen weights, of which the checkpoint holds digests only."""
        return [key.removeprefix(f"{_FROZEN}.") for key in under(_FROZEN, self._source.stored())]

    def fill(self, wanted: Sequence[Wanted]) -> None:
        """Every block that is read is compared with its digest. Raises as `keepstep.dcp.reader.fill`."""
        fill_boxes(self._source, [(f"{self._prefix}.{name}", box, target) for name, box, target in wanted])

    def _name(self, key: str) -> str:
        return key[len(self._prefix) + 1 :]


class FilesOrigin:
    """The tensors of a safetensors model state, but for some names. A context manager.

    Raises:
        ConfigError: there is none, or it is not readable.
    """

    def __init__(self, place: str | Path, without: Collection[str]) -> None:
        self.weights: dict[str, Weight] = {}
        self._file_of: dict[str, Path] = {}
        self._open: dict[Path, Any] = {}
        self._closing = ExitStack()
        for path in find_files(place):
            try:
                file = self._open[path] = self._closing.enter_context(safe_open(path, framework="pt"))
                for name in sorted(set(file.keys()) - set(without)):
                    self.weights[name] = Weight(*_form(file, name))
                    self._file_of[name] = path
            except SafetensorError as error:
                self.close()
                raise ConfigError(f"{path} is not readable: {error}") from error

    def fill(self, wanted: Sequence[Wanted]) -> None:
        """Raises ConfigError when a file is not readable any more."""
        for name, box, target in wanted:
            path = self._file_of[name]
            try:
                if not box.shape:
                    target.copy_(self._open[path].get_tensor(name))
                    continue
                cut = tuple(slice(at, at + length) for at, length in zip(box.at, box.shape, strict=True))
                target.copy_(self._open[path].get_slice(name)[cut])
            except SafetensorError as error:
                raise ConfigError(f"{path} is not readable: {error}") from error

    def close(self) -> None:
        """Close all files."""
        self._closing.close()

    def __enter__(self) -> "FilesOrigin":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _form(file: Any, name: str) -> tuple[torch.dtype, tuple[int, ...]]:
    part = file.get_slice(name)
    shape = tuple(part.get_shape())
    # Of none of its elements, torch's dtype is told as of all.
    one = part[0:0] if shape else file.get_tensor(name)
    return one.dtype, shape


def _nothing_there(folder: Path, prefix: str, stored: Mapping[str, Stored]) -> str:
    """What other sets of weights there are: those in which a name of the model occurs, or any tensors."""
    tensors = [key for key, what in stored.items() if what.shape is not None]
    model = next((key.removeprefix("model.") for key in tensors if key.startswith("model.")), None)
    found = [key[: -len(model) - 1] for key in tensors if key.endswith(f".{model}")] if model else []
    there = found or sorted({key.partition(".")[0] for key in tensors if "." in key})
    more = f" and {len(there) - _SHOWN} more" if len(there) > _SHOWN else ""
    return f"{folder} has no tensors under {prefix!r}; there are {', '.join(there[:_SHOWN]) or 'none at all'}{more}"
