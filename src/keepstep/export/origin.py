"""Where exported weights come from: a checkpoint, and a model state for what a trainable-only checkpoint lacks."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import torch
import xxhash
from safetensors import SafetensorError, safe_open

from keepstep.dcp.digests import bytes_of
from keepstep.dcp.entries import Stored
from keepstep.dcp.reader import fill_boxes, read_trees
from keepstep.dcp.regions import Box
from keepstep.dcp.source import Source
from keepstep.errors import ConfigError, StateMismatchError, UnsupportedStateError
from keepstep.export.source import find_files
from keepstep.plan.weight_files import DTYPES
from keepstep.state.component import under
from keepstep.state.frozen import FROZEN

# What is wanted of an origin: a name, a part of that tensor, and the memory to fill, of that shape and dtype.
Wanted = tuple[str, Box, torch.Tensor]
_SHOWN = 5
_OF_FORMAT = {name: dtype for dtype, name in DTYPES.items()}


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

    def check_frozen(self) -> None:
        """Judge what was read, when all that this rank needs has been."""


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
            raise ConfigError(_nothing_there(source.place, prefix, stored))
        self.weights: dict[str, Weight] = {}
        seen: set[str] = set()
        for key, what in held.items():
            if key in seen or what.shape is None or what.dtype is None:
                continue
            others = [name for name in held if name in what.names and name != key]
            seen.update(others)
            names = tuple(self._name(other) for other in others)
            self.weights[self._name(key)] = Weight(what.dtype, tuple(what.shape), names)

    def frozen(self) -> dict[str, str]:
        """Names of frozen weights, which the checkpoint does not hold, with their digests (see `digest_tensor`).

        Raises as `keepstep.dcp.reader.read_trees`.
        """
        digests = read_trees(self._source, under(FROZEN, self._source.stored()))
        return {key.removeprefix(f"{FROZEN}."): str(digest) for key, digest in digests.items()}

    def fill(self, wanted: Sequence[Wanted]) -> None:
        """Every block that is read is compared with its digest. Raises as `keepstep.dcp.reader.fill`."""
        fill_boxes(self._source, [(f"{self._prefix}.{name}", box, target) for name, box, target in wanted])

    def check_frozen(self) -> None:
        """Every block was compared already."""

    def _name(self, key: str) -> str:
        return key[len(self._prefix) + 1 :]


class FilesOrigin:
    """The tensors of a safetensors model state, but for some names. A context manager.

    Args:
        place: see `find_files`.
        without: names that are left out.
        frozen: digests of what a run was begun with, by name: what is read is compared with them.

    Raises:
        ConfigError: there is none, or it is not readable.
        UnsupportedStateError: a dtype that torch does not read.
    """

    def __init__(self, place: str | Path, without: Collection[str], frozen: Mapping[str, str]) -> None:
        self.weights: dict[str, Weight] = {}
        self._place, self._frozen = place, frozen
        self._digests: dict[str, Any] = {}
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
        """Of each tensor the parts are asked for one after the other, so that it is digested on the way.

        Raises:
            ConfigError: a file is not readable any more.
        """
        for name, box, target in wanted:
            path = self._file_of[name]
            try:
                if box.shape:
                    cut = tuple(slice(at, at + length) for at, length in zip(box.at, box.shape, strict=True))
                    target.copy_(self._open[path].get_slice(name)[cut])
                else:
                    target.copy_(self._open[path].get_tensor(name))
            except SafetensorError as error:
                raise ConfigError(f"{path} is not readable: {error}") from error
            if self._frozen.get(name):
                # The job may have loaded them in another dtype than the files have.
                known = getattr(torch, self._frozen[name].partition("(")[0].removeprefix("torch."), target.dtype)
                self._digests.setdefault(name, xxhash.xxh3_128()).update(bytes_of(target.to(known)))

    def check_frozen(self) -> None:
        """Raises StateMismatchError when what was read is not what the run was begun with."""
        found = self._digests.items()
        others = sorted(name for name, state in found if not self._frozen[name].endswith(state.hexdigest()))
        if others:
            more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
            raise StateMismatchError(
                f"{self._place} has other weights than those that the run was begun with: {', '.join(others[:_SHOWN])}"
                f"{more}; name the right ones as the source"
            )

    def close(self) -> None:
        """Close all files."""
        self._closing.close()

    def __enter__(self) -> "FilesOrigin":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Without:
    """An origin but for some names."""

    def __init__(self, origin: Origin, names: Collection[str]) -> None:
        self.fill, self.check_frozen = origin.fill, origin.check_frozen
        self.weights: dict[str, Weight] = {name: w for name, w in origin.weights.items() if name not in names}


class Joined:
    """Several origins as one; no name is in two of them."""

    def __init__(self, origins: Sequence[Origin]) -> None:
        self._origins = origins
        self.weights: dict[str, Weight] = {name: weight for one in origins for name, weight in one.weights.items()}

    def fill(self, wanted: Sequence[Wanted]) -> None:
        """Raises as each of them does."""
        for origin in self._origins:
            origin.fill([one for one in wanted if one[0] in origin.weights])

    def check_frozen(self) -> None:
        """Raises as each of them does."""
        for origin in self._origins:
            origin.check_frozen()


def _form(file: Any, name: str) -> tuple[torch.dtype, tuple[int, ...]]:
    part = file.get_slice(name)
    shape = tuple(part.get_shape())
    known = _OF_FORMAT.get(part.get_dtype())
    if known is None:
        raise UnsupportedStateError(f"{name} is of {part.get_dtype()}, which readers of safetensors files do not take")
    dtype: torch.dtype = getattr(torch, known)
    return dtype, shape


def weight_sets(stored: Mapping[str, Stored]) -> list[str]:
    """What the keys of each set of weights begin with: `model`, and every other place where a name of the model is."""
    tensors = [key for key, what in stored.items() if what.shape is not None]
    model = next((key.removeprefix("model.") for key in tensors if key.startswith("model.")), None)
    found = [key[: -len(model) - 1] for key in tensors if key.endswith(f".{model}")] if model else []
    return [one for one in found if not one.startswith("optimizer.")]


def named_set(stored: Mapping[str, Stored], name: str) -> str:
    """The set of weights that an object of the job keeps under a name: `task.ema` for "ema". Raises ConfigError."""
    there = weight_sets(stored)
    found = [one for one in there if one == name or one.endswith(f".{name}")]
    if len(found) != 1:
        raise ConfigError(
            f"{name!r} names {len(found) or 'no'} sets of weights; there are {', '.join(there) or 'none'}"
        )
    return found[0]


def _nothing_there(folder: object, prefix: str, stored: Mapping[str, Stored]) -> str:
    """What other sets of weights there are: those in which a name of the model occurs, or any tensors."""
    tensors = [key for key, what in stored.items() if what.shape is not None]
    there = weight_sets(stored) or sorted({key.partition(".")[0] for key in tensors if "." in key})
    more = f" and {len(there) - _SHOWN} more" if len(there) > _SHOWN else ""
    return f"{folder} has no tensors under {prefix!r}; there are {', '.join(there[:_SHOWN]) or 'none at all'}{more}"
