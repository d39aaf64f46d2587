"""Bits stay bits: dtypes, payloads, strides, sizes."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import keepstep
from keepstep.dcp.digests import bytes_of

TENSORS = {
    "bf16": torch.randn(3, 5).bfloat16(),
    "half": torch.randn(4).half(),
    "float8": torch.randn(9).to(torch.float8_e4m3fn),
    "complex": torch.randn(3, 2, dtype=torch.complex64),
    "conjugated": torch.randn(3, dtype=torch.complex64).conj(),
    "bool": torch.tensor([True, False, True]),
    "int8": torch.tensor([-128, 127], dtype=torch.int8),
    "uint16": torch.tensor([1, 65535], dtype=torch.uint16),
    "nan payload": torch.tensor([0x7FC12345, 0x7F812345, -0x400000], dtype=torch.int32).view(torch.float32),
    "negative zero": torch.tensor([-0.0, 0.0, float("-inf")]),
    "no dimension": torch.tensor(2.5),
    "empty": torch.empty(0, 3),
    "transposed": torch.randn(4, 6).t(),
    "strided": torch.randn(10, 10)[::3, 1::2],
    "channels last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "expanded": torch.arange(3.0).expand(4, 3),
    "large": torch.randn(300, 500),
}


class Holder(nn.Module):
    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("value", tensor)


def checkpointer(folder: Path, **parts: Any) -> keepstep.Checkpointer:
    config = keepstep.CheckpointingConfig(save_dir=str(folder), period_steps=5)
    return keepstep.Checkpointer(config, keepstep.JobState(**parts), handle_signals=False)


def empty_like(tensor: torch.Tensor) -> torch.Tensor:
    """Zeros of the same strides, also where elements share memory."""
    size = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    return torch.zeros(max(size, 0), dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride())


@pytest.mark.parametrize("name", TENSORS)
def test_every_bit_comes_back_into_the_same_strides(tmp_path: Path, name: str) -> None:
    tensor = TENSORS[name]
    with checkpointer(tmp_path, model=Holder(tensor)) as saver:
        saver.save(1)
    target = empty_like(tensor)
    strides = target.stride()
    with checkpointer(tmp_path, model=Holder(target)) as loader:
        loader.resume()
    assert bytes_of(target) == bytes_of(tensor)
    assert target.stride() == strides


def test_a_file_is_hardly_larger_than_what_is_in_it(tmp_path: Path) -> None:
    small = {f"{i}": torch.randn(3) for i in range(50)}
    large = {f"large {i}": torch.randn(300, 300) for i in range(5)}
    model = nn.Module()
    for name, tensor in (small | large).items():
        model.register_buffer(name, tensor)
    # A view of something huge is stored as what it shows.
    model.register_buffer("view", torch.zeros(1_000_000)[5:8])
    with checkpointer(tmp_path, model=model) as saver:
        saver.save(1)
    logical = sum(t.numel() * t.element_size() for t in model.buffers())
    trees = 3 * 2048 + 6000  # step, names, and the random states
    size = (tmp_path / "save-1" / "__0_0.distcp").stat().st_size
    assert size <= logical + 700 * 60 + 8192 * len(large) + trees


@pytest.mark.parametrize(
    ("tensor", "what"),
    [
        (torch.eye(3).to_sparse(), "sparse"),
        (torch.empty(3, device="meta"), "meta device"),
    ],
)
def test_what_cannot_be_stored_is_refused_at_the_start(tmp_path: Path, tensor: torch.Tensor, what: str) -> None:
    model = nn.Module()
    model.register_buffer("odd", tensor)
    with (
        checkpointer(tmp_path, model=model) as saver,
        pytest.raises(keepstep.UnsupportedStateError, match=rf"model\.odd is .*{what}"),
    ):
        saver.resume()


def test_no_dtype_is_cast(tmp_path: Path) -> None:
    with checkpointer(tmp_path, model=nn.Linear(2, 2)) as saver:
        saver.save(1)
    with (
        checkpointer(tmp_path, model=nn.Linear(2, 2).bfloat16()) as loader,
        pytest.raises(keepstep.StateMismatchError, match=r"dtype torch\.float32 in the checkpoint"),
    ):
        loader.resume()


@pytest.mark.parametrize(("weights", "moments"), [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)])
def test_moments_keep_their_own_dtype(tmp_path: Path, weights: torch.dtype, moments: torch.dtype) -> None:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Linear(3, 3).to(weights)
        return model, torch.optim.AdamW(model.parameters())

    model, optimizer = build()
    for parameter in model.parameters():
        values = torch.randn(parameter.shape)
        optimizer.state[parameter] = {"step": torch.tensor(3.0), "exp_avg": values.to(moments)}
    with checkpointer(tmp_path, model=model, optimizer=optimizer) as saver:
        saver.save(1)
    other, restored = build()
    with checkpointer(tmp_path, model=other, optimizer=restored) as loader:
        loader.resume()
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert restored.state[b]["exp_avg"].dtype is moments
        assert torch.equal(restored.state[b]["exp_avg"], optimizer.state[a]["exp_avg"])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_tensor_above_four_gigabytes(tmp_path: Path) -> None:
    tensor = torch.arange((1 << 32) // 8 + 1000, dtype=torch.int64)
    with checkpointer(tmp_path, model=Holder(tensor)) as saver:
        saver.save(1)
    target = torch.zeros_like(tensor)
    with checkpointer(tmp_path, model=Holder(target)) as loader:
        loader.resume()
    assert torch.equal(target, tensor)
    target.zero_()
    dcp.load({"model.value": target}, checkpoint_id=tmp_path / "save-1", no_dist=True)
    assert torch.equal(target, tensor)


def test_a_conjugated_parameter_is_filled_itself(tmp_path: Path) -> None:
    def model(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        module = nn.Module()
        module.p = nn.Parameter(torch.randn(3, dtype=torch.cfloat).conj())
        return module

    first, second = model(1), model(2)
    with checkpointer(tmp_path, model=first) as saver:
        saver.save(1)
    with checkpointer(tmp_path, model=second) as loader:
        loader.resume()
    assert torch.equal(first.p, second.p)
