"""Trees of plain values as bytes: what is stored, and what tells whether two ranks hold the same."""

import io
import pickle
from collections.abc import Mapping
from typing import Any

import torch

from keepstep.dcp.entries import Entry
from keepstep.dcp.opcodes import MALFORMED, Sealed, refuse_unsafe

_BUILTINS = ("__builtin__", "builtins")
_LATIN1 = ("latin1", "latin-1")


def pickle_trees(entries: Mapping[str, Entry]) -> dict[str, bytes]:
    """Each tree pickled for itself. Equal trees give equal bytes, whichever of their parts are one object."""
    stream = io.BytesIO()
    # torch.save's protocol, which torch.load's restricted reader knows.
    pickler = pickle.Pickler(stream, protocol=2)
    pickler.fast = True
    known: dict[int, bytes] = {}
    pickles = {}
    for key, entry in entries.items():
        if entry.same_as or isinstance(entry.value, torch.Tensor):
            continue
        # Many entries share one value: the options of a parameter group.
        data = known.get(id(entry.value))
        if data is None:
            pickler.dump(entry.value)
            data = known[id(entry.value)] = stream.getvalue()
            stream.seek(0)
            stream.truncate()
        pickles[key] = data
    return pickles


class _PlainUnpickler(pickle.Unpickler):
    """Reads plain trees. The one class or function they may ask for is how protocol 2 writes bytes."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return _Bytes
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no plain value needs")


class _ValueUnpickler(_PlainUnpickler):
    """The same, and bytearrays, which keepstep itself does not store."""

    def find_class(self, module: str, name: str) -> Any:
        return _ByteArray if name == "bytearray" and module in _BUILTINS else super().find_class(module, name)


class _Bytes(metaclass=Sealed):
    """Called with a text, it makes the bytes that protocol 2 writes as that text."""

    def __new__(cls, text: str, encoding: str) -> Any:
        if encoding not in _LATIN1:
            raise pickle.UnpicklingError("bytes in another encoding")
        return text.encode("latin1")


class _ByteArray(metaclass=Sealed):
    """The same for a bytearray. Called with a number, `bytearray` itself would take that many bytes."""

    def __new__(cls, content: Any = b"", encoding: str = "latin-1") -> Any:
        return bytearray(content if type(content) is bytes else _Bytes(content, encoding))


def unpickle_tree(data: bytes | bytearray | memoryview) -> Any:
    """The tree of a pickle, which ends where its last opcode stands.

    Raises:
        pickle.UnpicklingError: it holds anything but plain values.
    """
    # Trees are written without a memo (see `pickle_trees`), so none is in itself, or larger than its bytes.
    refuse_unsafe(data, memo=False)
    return _loaded(_PlainUnpickler(io.BytesIO(data)))


def has_bytes(data: bytes) -> bool:
    """Whether a pickle may ask `torch.load` for bytes, or bytearrays, of which it makes as many as it is told to."""
    return b"_codecs\nencode\n" in data or any(f"{one}\nbytearray\n".encode() in data for one in _BUILTINS)


def unpickle_value(data: bytes) -> Any:
    """A plain value that `torch.save` pickled, bytes and bytearrays among it.

    Raises:
        pickle.UnpicklingError: it holds anything but plain values.
    """
    refuse_unsafe(data)
    return _loaded(_ValueUnpickler(io.BytesIO(data)))


def _loaded(unpickler: pickle.Unpickler) -> Any:
    try:
        return unpickler.load()
    except pickle.UnpicklingError:
        raise
    except MALFORMED as error:
        raise pickle.UnpicklingError(f"it is damaged: {type(error).__name__}") from error
