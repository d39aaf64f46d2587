"""A Trainer on two ranks: twins, one decision for all, other worlds, FSDP2 shards."""

import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import transformers
from accelerate import FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState, DistributedType, GradientState, PartialState
from transformers import Trainer

from keepstep.errors import GuardRefusedError
from keepstep.testing.faults import flip_bit
from tests.rig import forks
from tests.rig.trainers import Numbers, run, tiny_trainer

pytestmark = pytest.mark.skipif(
    transformers.__version__.startswith("4."),
    reason="transformers 4 cannot load an optimizer on several CPU ranks (it asks torch for the device cpu:0)",
)


class Sharded(Trainer):
    """Accelerate shards on accelerators only; its code does so on the CPU as well."""

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        state = self.accelerator.state
        state.distributed_type = DistributedType.FSDP
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP
        state.fsdp_plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            state_dict_type="SHARDED_STATE_DICT",
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=["GPT2Block"],
            cpu_ram_efficient_loading=False,
        )
        self.is_fsdp_enabled = True
        self.accelerator.ddp_handler = None


def _start(folder: Path, *, sharded: bool = False, **more: Any) -> Any:
    """One rank's start of the trainer; what it gives back goes through a pipe."""
    for state in (GradientState, PartialState):
        state._reset_state()
    AcceleratorState._reset_state(True)
    settings = {"max_steps": 12, "save_steps": 4, **more.pop("settings", {})}
    if dist.is_initialized():
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1", LOCAL_WORLD_SIZE=os.environ["WORLD_SIZE"])
        os.environ.setdefault("LOCAL_RANK", os.environ["RANK"])
        settings["ddp_backend"] = "gloo"
    kind = Sharded if sharded else Trainer
    build = partial(tiny_trainer, kind=kind, dataset=Numbers(draws=True), **settings)
    done = run(build, folder, **more)
    weights = {name: _whole(held).tolist() for name, held in done.weights.items()}
    return done.seen, done.rows, weights, done.trainer.state.global_step


def _whole(tensor: Any) -> torch.Tensor:
    found: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found


def _on_ranks(ranks: int, folder: Path, **more: Any) -> list[Any]:
    return list(forks.values(lambda: _start(folder, **more), ranks))


class Runs:
    """What two ranks did that nobody stopped, and a copy of what a stop at step 10 left; made when first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._whole: dict[bool, list[Any]] = {}

    def whole(self, *, sharded: bool = False) -> list[Any]:
        if sharded not in self._whole:
            self._whole[sharded] = _on_ranks(2, self._folder / f"whole {sharded}", sharded=sharded)
        return self._whole[sharded]

    def stopped(self, to: Path, *, sharded: bool = False) -> None:
        folder = self._folder / f"stopped {sharded}"
        if not folder.exists():
            _on_ranks(2, folder, stop=10, sharded=sharded)
        shutil.copytree(folder, to)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("kind", ["replicas", "asynchronous", "shards", "shards, asynchronous"])
def test_twins(kind: str, runs: Runs, tmp_path: Path) -> None:
    sharded = "shards" in kind
    more: dict[str, Any] = {"sharded": sharded}
    whole = runs.whole(sharded=sharded)  # to the twin it makes no difference how saves are made
    if "asynchronous" in kind:
        more["options"] = {"mode": "async"}
        _on_ranks(2, tmp_path / "run", stop=10, **more)
    else:
        runs.stopped(tmp_path / "run", sharded=sharded)
    files = {path.name for path in (tmp_path / "run" / "checkpoint-8").iterdir()}
    assert {"rng_state_0.pth", "rng_state_1.pth", "keepstep_state_0.pt", "keepstep_state_1.pt"} <= files
    assert ({"pytorch_model_fsdp_0", "optimizer_0"} <= files) == ("shards" in kind)
    if "shards" in kind:  # by keepstep's writer, and digested as they were written
        assert (tmp_path / "run" / "checkpoint-8" / "optimizer_0" / "__0.index").exists()
    resumed = _on_ranks(2, tmp_path / "run", resume=True, **more)
    for rank in range(2):
        seen, rows, weights, step = resumed[rank]
        assert step == 12
        assert seen == whole[rank][0][8:]
        assert rows == [row for row in whole[rank][1] if row["step"] > 8]
        assert weights == whole[rank][2]


def test_a_damaged_shard_is_fallen_back_from_on_all_ranks(runs: Runs, tmp_path: Path) -> None:
    whole = runs.whole(sharded=True)
    runs.stopped(tmp_path / "run", sharded=True)
    flip_bit(tmp_path / "run" / "checkpoint-8" / "optimizer_0" / "__1_0.distcp", -100)
    resumed = _on_ranks(2, tmp_path / "run", sharded=True, resume=True)
    assert [len(seen) for seen, *_ in resumed] == [8, 8]
    assert resumed[0][2] == whole[0][2]
    assert list((tmp_path / "run" / ".keepstep" / "quarantine").glob("checkpoint-8.*"))


def test_another_world_is_refused_unless_it_is_accepted(runs: Runs, tmp_path: Path) -> None:
    runs.stopped(tmp_path / "run")
    with pytest.raises(GuardRefusedError, match="world_size"):
        _start(tmp_path / "run", resume=True)
    same_batch = {"gradient_accumulation_steps": 2}
    with pytest.raises(GuardRefusedError, match="world_size"):
        _start(tmp_path / "run", resume=True, settings=same_batch)
    whole = runs.whole()
    accepted = _start(tmp_path / "run", resume=True, settings=same_batch, options={"accept": ["world_size"]})
    # The same samples in each step, on one rank in two parts.
    parts = [sample for samples, *_ in accepted[0] for sample in samples]
    both = [sample for pair in zip(whole[0][0][8:], whole[1][0][8:], strict=True) for one in pair for sample in one[0]]
    assert parts == both
    assert accepted[3] == 12


def test_a_plain_trainer_reads_the_shards(runs: Runs, tmp_path: Path) -> None:
    runs.stopped(tmp_path / "run", sharded=True)
    path = str(tmp_path / "run" / "checkpoint-8")
    first, second = (
        _on_ranks(2, tmp_path / name, sharded=True, resume=path, plain=True, settings={"learning_rate": 0.0})
        for name in ("once", "again")
    )
    assert [step for *_, step in first] == [12, 12]
    assert first[0][2] == second[0][2]
    assert len(first[0][0]) == 4
