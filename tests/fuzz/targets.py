"""The readers of a checkpoint's files: what each is given, and the one way in which it may refuse."""

import json
import os
import pickle
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import keepstep
from keepstep.dcp.archive import find_raw, refuse_unsafe_archive
from keepstep.dcp.entries import Entry
from keepstep.dcp.metadata import parse_metadata, stored_keys
from keepstep.dcp.pickles import pickle_trees, unpickle_tree
from keepstep.dcp.reader import fill, read_trees
from keepstep.dcp.source import DamageFoundError, open_source
from keepstep.errors import DamagedCheckpointError, StateMismatchError, UnsupportedStateError
from keepstep.export.weights import export_weights
from keepstep.ops.diff import diff
from keepstep.ops.show import show
from keepstep.ops.verify import verify
from keepstep.plan.manifest import FileRecord, ManifestError, from_text, to_text
from keepstep.storage.digest import BLOCK_SIZE, DIGEST_SIZE, digest_of_bytes
from keepstep.storage.index import IndexFormatError, from_bytes
from keepstep.storage.run_record import read_record
from tests.fuzz.mutate import Mutation, any_bytes, any_json, any_pickle, hostile_pickles

_MAGIC = 12


@dataclass(frozen=True)
class Target:
    """A reader.

    Attributes:
        name: of the files that it reads.
        read: is given an input; whatever it raises beside `refusals` is a fault.
        refusals: the documented errors.
        seeds: right inputs.
        mutations: ways to make them wrong.
        prepare: puts an input where it is read from, before anybody watches.
        crafted: inputs that are known to do harm.
    """

    name: str
    read: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...]
    seeds: Sequence[bytes]
    mutations: Sequence[Mutation]
    prepare: Callable[[bytes], object] = bytes
    crafted: Sequence[bytes] = ()


def make_files(folder: Path) -> Path:
    """A small checkpoint, and a folder of plain DCP beside it. Returns the checkpoint."""
    model = nn.Sequential(nn.Linear(40, 30), nn.BatchNorm1d(30))
    parts: dict[str, Any] = {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}
    model(torch.ones(2, 40)).sum().backward()
    parts["optimizer"].step()
    config = keepstep.CheckpointingConfig(save_dir=str(folder / "run"), period_steps=1)
    with keepstep.Checkpointer(config, keepstep.JobState(**parts), handle_signals=False) as saver:
        saver.save(5)
    torch.manual_seed(1)
    dcp.save(_foreign(), checkpoint_id=folder / "dcp", no_dist=True)
    return folder / "run" / "save-5"


def _foreign() -> dict[str, Any]:
    return {
        "model": {"w": torch.ones(20, 30), "b": torch.arange(5), "v": torch.ones(9, 9).t()},
        "n": {"a": [1, {"b": 2}]},
    }


def all_targets(folder: Path) -> list[Target]:
    """Every reader, for the files that `make_files` made in a folder."""
    checkpoint = folder / "run" / "save-5"
    files = {path.name: path.read_bytes() for path in checkpoint.iterdir()}
    foreign = {path.name: path.read_bytes() for path in (folder / "dcp").iterdir()}
    archives = [files["__0_0.distcp"][i.offset :][: i.length] for i in _items(files)]
    trees = [files["__0_0.distcp"][i.data : i.offset + i.length] for i in _items(files) if not i.dtype]
    plain = {"a": [], "b": {"a": (1, 2.5, None, True)}, "c": {"b": 1 << 100, "c": b"\xff"}}
    trees += pickle_trees({key: Entry(value) for key, value in plain.items()}).values()
    metadata = [files[".metadata"], foreign[".metadata"]]
    record = folder / "record"
    record.mkdir()
    whole = _whole_checkpoint(folder, files)
    return [
        Target("manifest.json", _manifest, (ManifestError,), [files["manifest.json"]], (any_bytes, _signed)),
        Target(
            "run.json",
            lambda data: _is_dict(read_record(record)),
            (),
            [files["run.json"]],
            (any_bytes, any_json),
            prepare=(record / "run.json").write_bytes,
        ),
        Target("index", _index, (IndexFormatError,), [files["__0.index"]], (any_bytes, _any_index)),
        Target(
            ".metadata",
            lambda data: stored_keys(parse_metadata(data, folder)),
            (DamagedCheckpointError, UnsupportedStateError),
            metadata,
            (any_bytes, any_pickle, any_pickle),
            crafted=hostile_pickles(),
        ),
        Target(
            "tree", unpickle_tree, (pickle.UnpicklingError,), trees, (any_bytes, any_pickle), crafted=hostile_pickles()
        ),
        Target("archive", _archive, (pickle.UnpicklingError,), archives, (any_bytes, _any_archive)),
        whole,
        replace(whole, name="diff", read=lambda data: _compared(folder / "whole" / "save-5", checkpoint)),
        _export(folder, checkpoint),
        _whole_foreign(folder, foreign),
    ]


def _items(files: dict[str, bytes]) -> list[Any]:
    return [item for file in from_bytes(files["__0.index"]) for item in file.items]


def _manifest(data: bytes) -> None:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ManifestError("not text") from None
    manifest = from_text(text, digest_of_bytes)
    assert all(os.path.basename(name) == name and name not in ("", ".", "..") for name in manifest.files)
    assert manifest.size >= 0


def _signed(rng: random.Random, data: bytes) -> bytes:
    """A manifest with other content and the right digest for it."""
    body = json.loads(any_json(rng, data))
    if not isinstance(body, dict):
        return json.dumps(body).encode()
    body.pop("digest", None)
    try:
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    except ValueError:
        return data
    return json.dumps({**body, "digest": digest_of_bytes(text.encode())}).encode()


def _is_dict(value: object) -> None:
    assert isinstance(value, dict)


def _index(data: bytes) -> None:
    for file in from_bytes(data):
        assert os.path.basename(file.name) == file.name
        assert len(file.digests) == -(-file.size // BLOCK_SIZE) * DIGEST_SIZE
        for item in file.items:
            assert 0 <= item.offset <= item.data <= item.offset + item.length <= file.size


def _any_index(rng: random.Random, data: bytes) -> bytes:
    end = _MAGIC + int.from_bytes(data[8:_MAGIC], "little")
    header = any_json(rng, data[_MAGIC:end])
    return data[:8] + len(header).to_bytes(4, "little") + header + data[end:]


def _archive(data: bytes) -> None:
    def read(offset: int, size: int) -> bytes:
        assert 0 <= size <= 1 << 20
        assert 0 <= offset <= offset + size <= len(data)
        return data[offset : offset + size]

    raw = find_raw(len(data), read)
    if raw is not None:
        assert 0 <= raw.data <= raw.data + torch.Size(raw.shape).numel() * raw.dtype.itemsize <= len(data)
    refuse_unsafe_archive(data)


def _any_archive(rng: random.Random, data: bytes) -> bytes:
    """Changes the list of members at the end, or the pickle at the begin, where all that is told stands."""
    cut = min(len(data), rng.choice((64, 300)))
    if rng.random() < 0.5:
        return data[:-cut] + any_bytes(rng, data[-cut:])
    return any_bytes(rng, data[:cut]) + data[cut:]


def _whole_checkpoint(folder: Path, files: dict[str, bytes]) -> Target:
    """One file is another; the manifest has its size and digest, so that the readers behind it see it."""
    place = folder / "whole" / "save-5"
    shutil.copytree(folder / "run" / "save-5", place)
    manifest = from_text(files["manifest.json"].decode(), digest_of_bytes)
    names = {b"m": ".metadata", b"i": "__0.index", b"d": "__0_0.distcp"}
    changed: list[str] = []

    def prepare(data: bytes) -> None:
        for name in changed:
            (place / name).write_bytes(files[name])
        name = names[data[:1]]
        changed[:] = [name]
        (place / name).write_bytes(data[1:])
        record = FileRecord(len(data) - 1, digest_of_bytes(data[1:]))
        text = to_text(replace(manifest, files={**manifest.files, name: record}), digest_of_bytes)
        (place / "manifest.json").write_text(text)

    def mutated(rng: random.Random, data: bytes) -> bytes:
        change = rng.choice(
            {b"m": (any_bytes, any_pickle), b"i": (any_bytes, _any_index), b"d": (any_bytes,)}[data[:1]]
        )
        return data[:1] + change(rng, data[1:])

    def read(data: bytes) -> None:
        show(place)
        list(verify(place))
        with open_source(place) as source:
            stored = source.stored()
            trees = [key for key, what in stored.items() if not what.is_tensor]
            there = sum(record.size for record in manifest.files.values()) + len(data)
            tensors = {}
            for key, what in stored.items():
                if what.shape is not None:
                    assert what.shape.numel() * what.dtype.itemsize <= there, "memory for bytes that are not there"
                    tensors[key] = torch.empty(what.shape, dtype=what.dtype)
            fill(source, tensors)
            read_trees(source, trees)

    return Target(
        "checkpoint",
        read,
        (DamagedCheckpointError, DamageFoundError, UnsupportedStateError),
        [key + files[name] for key, name in names.items()],
        (mutated,),
        prepare=prepare,
        crafted=[b"m" + data for data in hostile_pickles()],
    )


def _compared(one: Path, other: Path) -> None:
    """As `keepstep diff` does it, both ways."""
    for a, b in ((one, other), (other, one)):
        json.dumps(diff(str(a), str(b), values=True).facts())


def _export(folder: Path, checkpoint: Path) -> Target:
    """The weights as a safetensors file, compared with where they came from."""
    export_weights(checkpoint, folder / "export")
    place = folder / "export" / "model.safetensors"

    def any_header(rng: random.Random, data: bytes) -> bytes:
        end = 8 + int.from_bytes(data[:8], "little")
        header = any_json(rng, data[8:end])
        return len(header).to_bytes(8, "little") + header + data[end:]

    return Target(
        "safetensors",
        lambda data: _compared(place, checkpoint),
        (DamagedCheckpointError,),
        [place.read_bytes()],
        (any_bytes, any_header),
        prepare=place.write_bytes,
    )


def _whole_foreign(folder: Path, files: dict[str, bytes]) -> Target:
    """A folder of plain DCP, which has no digests."""
    place = folder / "plain"
    shutil.copytree(folder / "dcp", place)
    names = {b"m": ".metadata", b"d": "__0_0.distcp"}

    def prepare(data: bytes) -> None:
        for name in names.values():
            (place / name).write_bytes(files[name])
        (place / names[data[:1]]).write_bytes(data[1:])

    def mutated(rng: random.Random, data: bytes) -> bytes:
        change = rng.choice((any_bytes, any_pickle)) if data[:1] == b"m" else any_bytes
        return data[:1] + change(rng, data[1:])

    return Target(
        "foreign DCP",
        lambda data: keepstep.load_dcp(_foreign(), place),
        (DamagedCheckpointError, UnsupportedStateError, StateMismatchError),
        [key + files[name] for key, name in names.items()],
        (mutated,),
        prepare=prepare,
        crafted=[b"m" + data for data in hostile_pickles()],
    )
