"""What is looked through before `torch.load` sees it: its reader makes whatever a few bytes ask for."""

import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import keepstep
from keepstep.dcp.archive import find_raw, refuse_unsafe_archive
from keepstep.dcp.pickles import unpickle_value
from keepstep.errors import UnsupportedStateError

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def archive(pickled: bytes, name: str = "data.pkl") -> bytes:
    stream = io.BytesIO()
    writer = torch._C.PyTorchFileWriter(stream)
    writer.write_record(name, pickled, len(pickled))
    writer.write_end_of_file()
    return stream.getvalue()


def saved(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def foreign(folder: Path, data: bytes) -> Any:
    """What `load_dcp` makes of an archive that lies where a value should."""
    dcp.save({"n": 0}, checkpoint_id=folder, no_dist=True)
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    (place,) = metadata.storage_data.values()
    place.offset, place.length = 0, len(data)
    (folder / place.relative_path).write_bytes(data)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    state = {"n": 0}
    keepstep.load_dcp(state, folder)
    return state["n"]


@pytest.mark.parametrize(
    "value", [b"\xff\0", bytearray(b"\xfe"), bytearray(), [b"a", {"b": (1, bytearray(b"c"))}, b"a"], {"hex": b"1"}]
)
def test_bytes_come_back(tmp_path: Path, value: Any) -> None:
    assert foreign(tmp_path, saved(value)) == value


@pytest.mark.parametrize(
    "pickled",
    [
        b"\x80\x02cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R.",
        b"\x80\x02c__builtin__\nbytearray\nJ\xff\xff\xff\x7f\x85R.",
        # Each call of it would double the bytes.
        b"\x80\x02c_codecs\nencode\nq\x000" + b"X\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86R.",
        b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86R.",
    ],
)
def test_a_few_bytes_do_not_become_many(tmp_path: Path, pickled: bytes) -> None:
    with pytest.raises(UnsupportedStateError):
        foreign(tmp_path, archive(pickled))
    with pytest.raises(pickle.UnpicklingError):
        unpickle_value(pickled)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK",
        saved(1)[1:],
        b"x" + saved(1),
        archive(b"N."[:1]),
        archive(b"N.", "other"),
        saved(1)[:-3],
        archive(b"Nr\xff\xff\xff\xff."),
    ],
)
def test_other_archives_are_refused(data: bytes) -> None:
    with pytest.raises(pickle.UnpicklingError):
        refuse_unsafe_archive(data)
    assert find_raw(len(data), lambda at, size: data[at : at + size]) is None


def test_names_are_told_apart_as_torch_does() -> None:
    stream = io.BytesIO()
    writer = torch._C.PyTorchFileWriter(stream)
    for name in ("data.pkl", "DATA.PKL"):
        writer.write_record(name, b"N.", 2)
    writer.write_end_of_file()
    with pytest.raises(pickle.UnpicklingError):
        refuse_unsafe_archive(stream.getvalue())


@pytest.mark.parametrize("value", [torch.arange(5), [1, "a"], {"a": torch.ones(2, 3).t()}, 3])
def test_what_torch_writes_gets_through(value: Any) -> None:
    refuse_unsafe_archive(saved(value))
