"""Trees of plain values as bytes: what is stored, and what tells whether two ranks hold the same."""

import io
import pickle
from collections.abc import Mapping
from typing import Any

import torch

from keepstep.dcp.entries import Entry


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
            return _bytes_of
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no plain value needs")


def _bytes_of(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes in the encoding {encoding!r}")
    return text.encode(encoding)


def unpickle_tree(data: bytes | bytearray | memoryview) -> Any:
    """The tree of a pickle, which ends where its last opcode stands.

    Raises:
        pickle.UnpicklingError: it holds anything but plain values.
    """
    return _PlainUnpickler(io.BytesIO(data)).load()
