"""Two checkpoints, or a checkpoint and an export: whatever differs is found, and nothing else."""

import json
import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import keepstep
from keepstep.errors import CheckpointNotFoundError, ConfigError, DamagedCheckpointError, KeepstepError
from keepstep.export.weights import export_weights
from keepstep.ops import compare, data_reader
from keepstep.ops.diff import Comparison, diff
from keepstep.storage.digest import BLOCK_SIZE
from tests.fuzz.test_hostile_files import sign
from tests.rig import forks
from tests.rig.crafted import craft, grid, whole


def keys(found: Comparison) -> list[str]:
    return sorted(one.kind.key for one in found.different)


def compared(a: Path, b: Path, **options: Any) -> Comparison:
    return diff(str(a), str(b), **options)


class Task:
    def __init__(self, **state: Any) -> None:
        self.state: dict[str, Any] = state

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def save(folder: Path, model: nn.Module, step: int = 5, seed: int = 3, config: Any = None, **state: Any) -> Path:
    """A real checkpoint of a real job."""
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(1, model.weight.shape[1])).sum().backward()
    optimizer.step()
    settings = keepstep.CheckpointingConfig(save_dir=str(folder), period_steps=1, num_to_keep=None)
    parts = keepstep.JobState(model=model, optimizer=optimizer, task=Task(**state))
    with keepstep.Checkpointer(settings, parts, "run", world=forks.world, handle_signals=False) as saver:
        saver.save(step)
    return folder / "run" / f"save-{step}"


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(200, 100)


def test_a_checkpoint_and_itself_saved_anew(tmp_path: Path) -> None:
    a, b = (save(tmp_path / name, linear(), text="x" * 5) for name in "ab")
    for found in (compared(a, a), compared(a, b), compared(a, b, values=True)):
        assert found.same_state
        assert found.same
        assert not found.different
        assert found.bytes_read == 0, "digests alone tell that"
    counts = {t.component: t for t in found.tallies}
    assert set(counts) == {"model", "optimizer", "rng", "step", "task"}
    assert counts["model"].equal == 2


def test_every_kind_of_difference(tmp_path: Path) -> None:
    model = linear()
    a = save(tmp_path / "a", model, text="one", gone=1, count=torch.zeros(3), other=torch.zeros(2))
    b = save(tmp_path / "b", model, text="two", new=2, count=torch.zeros(4), other=torch.zeros(2).double())
    c = save(tmp_path / "c", linear(), seed=4, step=6)
    found = compared(a, b, components=["task"])
    assert [(c.key, c.a.shape, c.b.shape, c.b.dtype) for c in found.changed] == [
        ("task.count", (3,), (4,), "float32"),
        ("task.other", (2,), (2,), "float64"),
    ]
    assert "task.gone" in [k.key for k in found.removed]
    assert "task.new" in [k.key for k in found.added]
    assert "task.text" in keys(found)
    assert {t.component for t in found.tallies} == {"task"}
    assert not found.same_state
    found = compared(a, c)
    assert "rng.rank_0" in keys(found)
    assert "step" in keys(found)
    assert {f.field for f in found.record} >= {"step"}
    assert "model.weight" not in keys(found), "one step of AdamW on equal gradients"
    with pytest.raises(ConfigError, match="there are model, optimizer, rng, step, task"):
        compared(a, b, components=["modle"])


@pytest.mark.parametrize("lengths", [(3, 5), (10, 400), (30_000, 30_001), (60_000, 70_000)])
def test_values_in_slots_of_any_length(tmp_path: Path, lengths: tuple[int, int]) -> None:
    """A value that has become shorter keeps its slot; a new run makes a slot for it anew. It is the same value."""
    short, long = lengths
    (tmp_path / "a").mkdir()
    task, model = Task(text="x" * long), linear()
    settings = keepstep.CheckpointingConfig(save_dir=str(tmp_path / "a"), period_steps=1, num_to_keep=None)
    parts = keepstep.JobState(model=model, task=task)
    with keepstep.Checkpointer(settings, parts, "run", world=forks.world, handle_signals=False) as saver:
        saver.save(1)
        task.state = {"text": "x" * short}
        saver.save(2)
    a, b = (tmp_path / "a" / "run" / f"save-{step}" for step in (1, 2))
    c = save(tmp_path / "c", linear(), text="x" * short)
    assert keys(compared(a, b, components=["task"])) == ["task.text"]
    found = compared(b, c, components=["task"])
    assert found.same_state
    assert compared(c, b, components=["task"]).same_state
    assert keys(compared(c, a, components=["task"])) == ["task.text"]


@pytest.mark.parametrize("at", [0, 5000, 30_000, 49_999])
@pytest.mark.parametrize("shift", [0, 1024, BLOCK_SIZE])
def test_one_byte_in_an_inner_block_or_at_an_edge(tmp_path: Path, at: int, shift: int) -> None:
    """The neighbours share blocks with what has changed, and are equal."""
    tensors = {f"model.{n}": np.arange(50_000 + n, dtype=np.uint8 if n % 2 else np.float32) for n in range(3)}
    a = craft(tmp_path / "a", 1, tensors)
    changed = tensors["model.1"].copy()
    changed[at] ^= 1
    b = craft(tmp_path / "b", 1, {**tensors, "model.1": changed}, shift=shift)
    found = compared(a, b)
    assert keys(found) == ["model.1"]
    around = {"model.0": tensors["model.0"].copy(), "model.2": tensors["model.2"].copy()}
    around["model.0"][-1], around["model.2"][0] = -1, -1
    assert keys(compared(a, craft(tmp_path / "c", 1, {**tensors, **around}, shift=shift))) == ["model.0", "model.2"]
    d = craft(tmp_path / "d", 1, {**tensors, **around, "model.1": changed}, shift=shift)
    assert len(keys(compared(a, d))) == 3
    values = compared(a, b, values=True).different[0].values
    assert values is not None
    assert (values.elements, values.differing, values.max_abs) == (50_001, 1, 1.0)


def test_digests_spare_reading(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)
    other = numbers.copy()
    other[1 << 19] += 1
    a, b = (craft(tmp_path / n, 1, {"model.w": w}) for n, w in (("a", numbers), ("b", other)))
    assert compared(a, b).bytes_read == 0
    told: list[int] = []
    found = compared(a, b, values=True, watch=lambda done, total: told.append(done))
    assert found.bytes_read == numbers.nbytes + BLOCK_SIZE, "of equal blocks one side is enough"
    assert told[-1] == numbers.nbytes
    values = found.different[0].values
    assert values is not None
    assert values.relative == pytest.approx(1 / np.linalg.norm(numbers), rel=1e-5)
    c = craft(tmp_path / "c", 1, {"model.w": numbers}, shift=16)
    assert compared(a, c).same_state
    assert compared(a, c).bytes_read == 2 * numbers.nbytes


def test_an_index_may_put_elements_anywhere(tmp_path: Path) -> None:
    numbers = np.ones(50_000, np.float32)
    other = numbers.copy()
    other[25_000:] += 2
    a, b = (craft(tmp_path / n, 1, {"model.w": w}, shift=3, align=1) for n, w in (("a", numbers), ("b", other)))
    values = compared(a, b, values=True).different[0].values
    assert values is not None
    assert (values.differing, values.max_abs) == (25_000, 2.0)


def test_what_lies_in_a_slot_behind_a_value_counts_unless_it_is_zero(tmp_path: Path) -> None:
    def made(name: str, slot: bytes, large: bool = False) -> Path:
        begin = 0xFFFFFFFF if large else len(slot)
        end = bytes(76 * large) + struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 0, 0, 0, begin, 0)
        array = np.frombuffer(slot + end, np.uint8)
        return craft(tmp_path / name, 1, {"task.x": array}, dtypes={"task.x": ""})

    a = made("a", b"value.")
    for name, slot, large, same in (
        ("b", b"value.\0\0", False, True),
        ("c", b"value.\0\1", False, False),
        ("d", b"value.\0", True, True),
        ("e", b"value", False, False),
    ):
        b = made(name, slot, large)
        assert compared(a, b).same_state is compared(b, a).same_state is same, name
    broken = craft(tmp_path / "f", 1, {"task.x": np.arange(40, dtype=np.uint8)}, dtypes={"task.x": ""})
    with pytest.raises(DamagedCheckpointError, match="no archive"):
        compared(a, broken)


def test_those_that_differ_most_come_first(tmp_path: Path) -> None:
    tensors = {f"model.{n}": np.ones(9) for n in range(4)}
    a = craft(tmp_path / "a", 1, tensors)
    b = craft(tmp_path / "b", 1, {f"model.{n}": np.ones(9) * by for n, by in enumerate((1.1, 3, 1, 2))})
    assert [d.kind.key for d in compared(a, b, values=True).different] == ["model.1", "model.3", "model.0"]


def test_few_files_are_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_reader, "_MOST", 2)
    tensors = {f"model.{n}": np.arange(600.0) + n for n in range(5)}
    a = craft(tmp_path / "a", 1, tensors, cut=grid(30), ranks=30)
    b = craft(tmp_path / "b", 1, tensors, cut=grid(20), ranks=20)
    before, most = len(os.listdir("/proc/self/fd")), 0

    def watch(done: int, total: int) -> None:
        nonlocal most
        most = max(most, len(os.listdir("/proc/self/fd")) - before)

    assert compared(a, b, watch=watch).same_state
    assert 0 < most <= 4
    assert len(os.listdir("/proc/self/fd")) == before


CUTS: dict[str, Callable[..., Any]] = {
    "whole": whole,
    "rows": grid(4),
    "columns": grid(1, 3),
    "both": grid(2, 3),
    "deep": grid(1, 1, 4),
}


@pytest.mark.parametrize("second", CUTS)
@pytest.mark.parametrize("first", CUTS)
def test_any_two_layouts(tmp_path: Path, first: str, second: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "CHUNK", 4096)
    random = np.random.default_rng(1)
    tensors = {
        "model.a": random.integers(0, 9, (37, 11, 9)).astype(np.int16),
        "model.b": random.standard_normal((130, 70)),
        "model.c": random.standard_normal((8, 5, 6)) + 1j,
        "model.d": np.float32(3.0).reshape(()),
        "model.e": np.zeros((4, 0), np.float32),
    }
    a = craft(tmp_path / "a", 1, tensors, cut=CUTS[first], ranks=4)
    changed = {**tensors, "model.b": tensors["model.b"].copy()}
    changed["model.b"][129, 69] += 0.5
    b = craft(tmp_path / "b", 1, changed, cut=CUTS[second], ranks=2)
    c = craft(tmp_path / "c", 1, tensors, cut=CUTS[second], ranks=3)
    assert compared(a, c).same_state
    assert compared(a, c, values=True).same_state
    found = compared(a, b, values=True)
    assert keys(found) == keys(compared(a, b)) == ["model.b"]
    values = found.different[0].values
    assert values is not None
    assert (values.differing, values.max_abs) == (1, 0.5)
    assert values.relative == pytest.approx(0.5 / np.linalg.norm(tensors["model.b"]))


def sharded(folder: Path, size: int, change: bool = False) -> Path:
    """A real checkpoint of FSDP2 on some ranks. The state is the same whatever the ranks."""

    def work() -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(30, 21), nn.Linear(21, 300))
        with torch.no_grad():
            model[1].weight[290, 20] += float(change)
        if size > 1:
            fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
        settings = keepstep.CheckpointingConfig(save_dir=str(folder), period_steps=1)
        with keepstep.Checkpointer(
            settings, keepstep.JobState(model=model), "run", world=forks.world, handle_signals=False
        ) as saver:
            saver.save(1)

    forks.values(work, size)
    return folder / "run" / "save-1"


def test_checkpoints_of_other_ranks(tmp_path: Path) -> None:
    four, two, one = (sharded(tmp_path / str(size), size) for size in (4, 2, 1))
    for a, b in ((four, two), (two, four), (four, one)):
        found = compared(a, b, components=["model"])
        assert found.same_state
        assert found.tallies[0].equal == 4
        assert [f.field for f in found.record if f.field == "world_size"]
    other = sharded(tmp_path / "other", 2, change=True)
    found = compared(four, other, values=True, components=["model"])
    assert keys(found) == ["model.1.weight"]
    values = found.different[0].values
    assert values is not None
    assert values.differing == 1
    assert values.max_abs == pytest.approx(1.0)


def test_exports(tmp_path: Path) -> None:
    model = linear()
    a = save(tmp_path / "a", model, text="one")
    export_weights(a, tmp_path / "export")
    for address in (tmp_path / "export", tmp_path / "export" / "model.safetensors"):
        found = compared(a, address)
        assert found.same_state
        assert found.a.left_out > 5
        assert found.b.left_out == 0
        assert [t.component for t in found.tallies] == ["model"]
        assert compared(address, a).b.left_out == found.a.left_out
    with torch.no_grad():
        model.weight[3, 4] += 2
    folder = tmp_path / "several"
    folder.mkdir()
    weights = dict(model.state_dict())
    save_file({"weight": weights["weight"].contiguous()}, folder / "one.safetensors")
    save_file({"bias": weights["bias"].contiguous()}, folder / "two.safetensors")
    found = compared(tmp_path / "export", folder, values=True)
    assert keys(found) == ["model.weight"]
    assert found.different[0].values is not None
    assert found.different[0].values.differing == 1
    save_file({"left": torch.ones(3)}, folder / "three.safetensors")
    assert [k.key for k in compared(a, folder).added] == ["model.left"]
    listed = {"weight_map": {"weight": "one.safetensors", "bias": "two.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(listed))
    assert not compared(a, folder).added
    (tmp_path / "link.safetensors").symlink_to(folder / "one.safetensors")
    assert [k.key for k in compared(a, tmp_path / "link.safetensors").removed] == ["model.bias"]


def test_what_cannot_be_compared_is_said(tmp_path: Path) -> None:
    a = craft(tmp_path, 1, {"model.w": np.zeros(3)})
    with pytest.raises(ConfigError, match="keepstep pull s3://bucket/checkpoint-1 FOLDER"):
        diff(str(a), "s3://bucket/checkpoint-1")
    for missing in (tmp_path, tmp_path / "save-9", tmp_path / "x.safetensors", a / "manifest.json"):
        with pytest.raises(CheckpointNotFoundError, match="give a save-<step> folder"):
            compared(a, missing)
    (tmp_path / "save-2").mkdir()
    with pytest.raises(CheckpointNotFoundError, match="no committed checkpoint"):
        compared(tmp_path / "save-2", a)


def header(file: Path, entries: Any, data: bytes = bytes(64), length: int | None = None) -> Path:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    file.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return file


@pytest.mark.parametrize(
    "entries",
    [
        b"{",
        b"[]",
        b"[" * 100_000,
        b'{"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}, "w": 1}',
        {"w": 3},
        {"w": {"dtype": "F32", "shape": [4]}},
        {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 15]}},
        {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 1600]}},
        {"w": {"dtype": "F32", "shape": [4], "data_offsets": [-16, 0]}},
        {"w": {"dtype": "F32", "shape": [400], "data_offsets": [0, 1600]}},
        {"w": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 16]}},
        b'{"w": {"dtype": "F32", "shape": [1' + b"0" * 4000 + b'], "data_offsets": [0, 16]}}',
        {"w": {"dtype": "F32", "shape": [1 << 62] * 1000, "data_offsets": [0, 16]}},
        {"w": {"dtype": "F32", "shape": [4.0], "data_offsets": [0, 16]}},
        {"w": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}},
        {"w": {"dtype": ["F32"], "shape": [4], "data_offsets": [0, 16]}},
        {"w": {"dtype": "F32", "shape": "4", "data_offsets": "ab"}},
        {"w": {"dtype": "float32", "shape": [4], "data_offsets": [0, 3]}},
    ],
)
def test_a_header_that_lies(tmp_path: Path, entries: Any) -> None:
    a = craft(tmp_path, 1, {"model.w": np.zeros(4, np.float32)})
    with pytest.raises(DamagedCheckpointError):
        compared(a, header(tmp_path / "m.safetensors", entries))


@pytest.mark.parametrize("length", [0, 1 << 20, (1 << 64) - 1])
def test_a_header_of_another_length(tmp_path: Path, length: int) -> None:
    a = craft(tmp_path, 1, {"model.w": np.zeros(4, np.float32)})
    entries = {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}
    assert compared(a, header(tmp_path / "m.safetensors", entries)).same_state
    with pytest.raises(DamagedCheckpointError, match="no safetensors file"):
        compared(a, header(tmp_path / "m.safetensors", entries, length=length))


def test_a_dtype_of_later_days_is_compared_by_its_bytes(tmp_path: Path) -> None:
    entries = {"w": {"dtype": "F4", "shape": [8], "data_offsets": [0, 4]}}
    a = header(tmp_path / "a.safetensors", entries)
    b = header(tmp_path / "b.safetensors", entries, data=b"\1" * 64)
    assert compared(a, a, values=True).same
    (one,) = compared(a, b, values=True).different
    assert (one.kind.dtype, one.values) == ("F4", None)
    entries["w"]["data_offsets"] = [0, 5]
    c = header(tmp_path / "c.safetensors", entries)
    assert [k.key for k in compared(a, c).changed] == ["model.w"]


@pytest.mark.parametrize("name", ["../m.safetensors", "/etc/passwd", "", ".", 3, ["m"]])
def test_an_index_leads_nowhere_else(tmp_path: Path, name: Any) -> None:
    folder = tmp_path / "export"
    folder.mkdir()
    header(tmp_path / "m.safetensors", {})
    (folder / "x.safetensors").write_bytes(b"")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(DamagedCheckpointError):
        compared(folder, folder)


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "missing"])
def test_only_plain_files_are_opened(tmp_path: Path, kind: str) -> None:
    a = craft(tmp_path, 1, {"model.w": np.zeros(4, np.float32)})
    folder = tmp_path / "export"
    folder.mkdir()
    header(tmp_path / "there", {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}})
    for file in (folder / "m.safetensors", a / "__0.index", a / "__0_0.distcp"):
        if file.parent == a:
            file.rename(tmp_path / "there")
        match kind:
            case "link":
                file.symlink_to(tmp_path / "there")
            case "fifo":
                os.mkfifo(file)
            case "folder":
                file.mkdir()
        with pytest.raises(KeepstepError):
            compared(a, folder if file.parent == folder else a)
        if kind != "missing":
            file.rmdir() if kind == "folder" else file.unlink()
        if file.parent == a:
            (tmp_path / "there").rename(file)


def test_an_index_that_is_not_the_manifest_s_is_not_believed(tmp_path: Path) -> None:
    a = craft(tmp_path / "a", 1, {"model.w": np.zeros(40_000)})
    b = craft(tmp_path / "b", 1, {"model.w": np.ones(40_000)})
    (b / "__0.index").write_bytes((a / "__0.index").read_bytes())
    with pytest.raises(DamagedCheckpointError, match=r"__0\.index: its content has changed; see keepstep verify"):
        compared(a, b)
    sign(b)
    with pytest.raises(DamagedCheckpointError, match=r"what it says of __0_0\.distcp is not what the manifest says"):
        compared(a, b)


def test_shards_that_overlap_or_leave_a_gap(tmp_path: Path) -> None:
    w = np.arange(12.0).reshape(6, 2)
    a = craft(tmp_path / "a", 1, {"model.w": w})
    twice = [((0, 0), (5, 2)), ((5, 1), (1, 1)), ((5, 1), (1, 1))]
    overlapping = craft(tmp_path / "b", 1, {"model.w": w}, cut=lambda k, v: twice)
    with pytest.raises(DamagedCheckpointError, match="overlap"):
        compared(a, overlapping)
    gap = craft(tmp_path / "c", 1, {"model.w": w}, cut=lambda k, v: [((0, 0), (4, 2)), ((5, 0), (1, 2))])
    with pytest.raises(DamagedCheckpointError, match="do not make one tensor"):
        compared(a, gap)


def test_memory_stays_bounded_and_progress_is_told(tmp_path: Path) -> None:
    """100 MB, shards of other layouts: all of it is read."""
    w = np.random.default_rng(0).standard_normal((1600, 8192), dtype=np.float32)
    a = craft(tmp_path / "a", 1, {"model.w": w}, cut=grid(4), ranks=4)
    w[1] += 1e-3
    b = craft(tmp_path / "b", 1, {"model.w": w}, cut=grid(3, 2), ranks=2)
    told: list[tuple[int, int]] = []
    tracemalloc.start()
    found = compared(a, b, values=True, watch=lambda done, total: told.append((done, total)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.bytes_read >= 2 * w.nbytes
    assert found.different[0].values is not None
    assert found.different[0].values.differing == 8192
    assert peak < 16e6
    assert told[-1] == (w.nbytes, w.nbytes)
    assert told == sorted(told)
    assert len(told) > 50
