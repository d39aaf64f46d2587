"""Every dtype and shape comes out as it went in, and a file that is not what was written is noticed."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import keepstep
from keepstep.errors import DamagedCheckpointError, ExportError, UnsupportedStateError
from keepstep.export import stream
from keepstep.export.weights import export_weights
from keepstep.plan.weight_files import DTYPES
from keepstep.storage.index import from_bytes
from tests.rig import forks


class Tensors(nn.Module):
    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)


def save(folder: Path, model: nn.Module, world: object = None) -> Path:
    config = keepstep.CheckpointingConfig(save_dir=str(folder), period_steps=1)
    state = keepstep.JobState(model=model)
    with keepstep.Checkpointer(config, state, "run", handle_signals=False, world=world) as saver:
        saver.save(1)
    return folder / "run" / "save-1"


def odd_ones() -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    found = {}
    for dtype in DTYPES:
        bits = torch.randint(0, 2 if dtype == "bool" else 256, (5, 3, 16), dtype=torch.uint8)
        found[f"a_{dtype}"] = bits.view(getattr(torch, dtype))
        found[f"a_{dtype}_scalar"] = found[f"a_{dtype}"].flatten()[1].clone()
        found[f"a_{dtype}_empty"] = found[f"a_{dtype}"][:, :0].clone()
    found["turned"] = torch.arange(12.0).reshape(3, 4).T
    found["expanded"] = torch.ones(1).expand(5)
    return found


def bits(tensor: torch.Tensor) -> bytes:
    plain = tensor.contiguous().reshape(-1)
    return bytes(plain.clone().view(torch.uint8).numpy()) if plain.numel() else b""


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
        assert bits(found[name]) == bits(value), name


def test_every_dtype_and_shape_as_the_reference_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = odd_ones()
    checkpoint = save(tmp_path, Tensors(tensors))
    plain = {name: value.contiguous() for name, value in tensors.items()}
    save_file(plain, tmp_path / "reference", {"format": "pt"})
    for piece in (32 << 20, 1000, 64):  # the smaller ones cut tensors
        monkeypatch.setattr(stream, "_PIECE", piece)
        export_weights(checkpoint, tmp_path / "out")
        assert_same(load_file(tmp_path / "out" / "model.safetensors"), plain)
        assert (tmp_path / "out" / "model.safetensors").read_bytes() == (tmp_path / "reference").read_bytes()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_casts_are_those_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    tensors = {name: value for name, value in odd_ones().items() if "complex" not in name}
    checkpoint = save(tmp_path, Tensors(tensors))
    monkeypatch.setattr(stream, "_PIECE", 256)
    export_weights(checkpoint, tmp_path / "out", dtype=dtype)
    expected = {
        name: value.to(getattr(torch, dtype)) if value.is_floating_point() and value.element_size() > 1 else value
        for name, value in tensors.items()
    }
    found = load_file(tmp_path / "out" / "model.safetensors")
    for name, value in expected.items():  # the bits of a NaN may be others
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
        if value.dtype == getattr(torch, dtype):
            assert torch.equal(found[name].double().nan_to_num(7), value.double().nan_to_num(7)), name


def test_numbers_that_become_infinite_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = save(tmp_path, Tensors({"a": torch.tensor([1e6, -1e6, float("inf"), 1.0]), "b": torch.ones(2)}))
    export_weights(checkpoint, tmp_path / "out", dtype="bfloat16")
    assert not caplog.text
    export_weights(checkpoint, tmp_path / "out", dtype="float16")
    assert "2 numbers are too large for float16 and became infinite, 2 of them in a;" in caplog.text


def test_a_dtype_that_no_reader_takes_is_refused_by_name(tmp_path: Path) -> None:
    checkpoint = save(tmp_path, Tensors({"a": torch.zeros(2, dtype=torch.complex128)}))
    with pytest.raises(UnsupportedStateError, match="a is of complex128, which readers"):
        export_weights(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_flipped_byte_in_a_written_file_is_noticed(
    tied: tuple[Path, nn.Module], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write

    def flipping(descriptor: int, data: memoryview) -> int:
        changed = bytearray(data)
        if len(changed) > 300:
            changed[200] ^= 1
        return real(descriptor, changed)

    export_weights(tied[0].with_name("save-5"), tmp_path / "old")
    before = (tmp_path / "old" / "model.safetensors").read_bytes()
    monkeypatch.setattr(stream.os, "write", flipping)
    for name in ("out", "old"):
        with pytest.raises(ExportError, match="what is read back is not what was written"):
            export_weights(tied[0], tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == ["old", "run"]
    assert sorted(os.listdir(tmp_path / "old")) == ["keepstep.json", "model.safetensors"]
    assert (tmp_path / "old" / "model.safetensors").read_bytes() == before


def test_digests_are_those_of_a_common_tool(tied: tuple[Path, nn.Module], tmp_path: Path) -> None:
    import xxhash

    done = export_weights(tied[0], tmp_path / "out", max_shard_size=200)
    for name, file in done.files.items():
        data = (tmp_path / "out" / name).read_bytes()
        assert (len(data), xxhash.xxh3_128_hexdigest(data)) == (file.size, file.digest)


def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    checkpoint = save(tmp_path, Tensors({"large": torch.ones(40 << 20), "b": torch.ones(10 << 20)}))  # 200 MiB

    def peak() -> int:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) >> 10  # MiB

    def work() -> int:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = peak()
        export_weights(checkpoint, tmp_path / "out")
        return peak() - before

    assert forks.values(work)[0] < 130
    assert (tmp_path / "out" / "model.safetensors").stat().st_size > 200 << 20


def test_ranks_export_what_ranks_have_saved(tmp_path: Path) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    tensors = {"rows": torch.arange(70.0).reshape(7, 10), "columns": torch.arange(60.0).reshape(4, 15)}
    tensors["all"] = torch.arange(5)

    def work() -> list[str]:
        mesh = init_device_mesh("cpu", (2,))
        placed = {
            name: distribute_tensor(tensors[name], mesh, [place])
            for name, place in (("rows", Shard(0)), ("columns", Shard(1)), ("all", Replicate()))
        }
        checkpoint = save(tmp_path, Tensors(placed), forks.world)
        done = export_weights(checkpoint, tmp_path / "two", max_shard_size=250, world=forks.world)
        return sorted(done.files) if forks.world.rank == 0 else []

    names, _ = forks.values(work, 2)
    assert len(names) == 4
    found = {k: v for name in names[:3] for k, v in load_file(tmp_path / "two" / name).items()}
    assert_same(found, tensors)
    export_weights(tmp_path / "run" / "save-1", tmp_path / "one", max_shard_size=250)
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert (tmp_path / "one" / "keepstep.json").read_text() == (tmp_path / "two" / "keepstep.json").read_text()


def test_damage_that_one_rank_finds_is_damage_for_all(tied: tuple[Path, nn.Module], tmp_path: Path) -> None:
    checkpoint = tied[0]
    items = from_bytes((checkpoint / "__0.index").read_bytes())[0].items
    shard = checkpoint / "__0_0.distcp"
    data = bytearray(shard.read_bytes())
    for item in items:
        if item.key == "model.layers.2.weight":
            data[item.data] ^= 1
    shard.write_bytes(data)

    def work() -> None:
        with pytest.raises(DamagedCheckpointError, match="is damaged and not exported"):
            export_weights(checkpoint, tmp_path / "out", max_shard_size=120, world=forks.world)

    forks.values(work, 2)
    assert sorted(os.listdir(tmp_path)) == ["run"]
