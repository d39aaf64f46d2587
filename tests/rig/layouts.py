"""One model that trains under every layout, and the layouts."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from keepstep.checkpoint.run_folder import RunFolder
from keepstep.dcp import reader as reader_module
from keepstep.dcp.regions import Box, spans
from keepstep.job import loop as loop_module
from keepstep.job import model_parts
from keepstep.job.protocols import JobContext
from keepstep.job.train import TrainingJob
from keepstep.storage.digest import BLOCK_SIZE
from tests.rig import forks, jobs

WIDTH, INNER = 10, 6  # no multiples of four; torch divides a layer evenly over a tensor axis only


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, INNER)
        self.down = nn.Linear(INNER, WIDTH)
        self.scale = nn.Parameter(torch.ones(1))  # rows fewer than ranks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * self.down(torch.tanh(self.up(x)))


class Stage(nn.Module):
    """Some of the layers, under their own names."""

    def __init__(self, layers: dict[str, nn.Module]) -> None:
        super().__init__()
        for name, layer in layers.items():
            owner, _, last = name.rpartition(".")
            if owner:
                if not hasattr(self, owner):
                    self.add_module(owner, nn.ModuleDict())
                getattr(self, owner)[last] = layer
            else:
                self.add_module(name, layer)
        self._order = list(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in self._order:
            x = self.get_submodule(name)(x)
        return x


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(4)])
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    def tensor_parallel_plan(self) -> dict[str, ParallelStyle]:
        return {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()}

    def pipeline_stages(self, count: int) -> list[nn.Module]:
        layers: dict[str, nn.Module] = {"embed": self.embed}
        layers |= {f"blocks.{number}": block for number, block in enumerate(self.blocks)}
        layers["head"] = self.head
        names = list(layers)
        return [
            Stage({n: layers[n] for n in names[len(names) * i // count : len(names) * (i + 1) // count]})
            for i in range(count)
        ]


class Task(jobs.Task):
    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return self.output_loss(model(batch[1]), batch[1])

    def inputs(self, batch: Any) -> list[torch.Tensor]:
        return [batch[1]]

    def target(self, batch: Any) -> torch.Tensor:
        return batch[1]

    def output_loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output - target[:, :3]).square().mean()

    def state_dict(self) -> dict[str, Any]:
        return {"fixed": [1, "two"]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state == {"fixed": [1, "two"]}


def tower(context: JobContext) -> Tower:
    return Tower()


def task(context: JobContext) -> Task:
    return Task()


@dataclass(frozen=True)
class Layout:
    """Ranks, the mesh section, the pipeline section, and whether plain DDP takes the place of FSDP2."""

    ranks: int
    mesh: dict[str, Any] = field(default_factory=dict)
    pipeline: dict[str, Any] = field(default_factory=dict)
    ddp: bool = False


LAYOUTS = {
    "1 process": Layout(1),
    "DDP 2": Layout(2, {"data_parallel_replicate": 2, "data_parallel_shard": 1}, ddp=True),
    "FSDP2 2": Layout(2),
    "FSDP2 4": Layout(4),
    "HSDP 2x2": Layout(4, {"data_parallel_replicate": 2}),
    "TP 2": Layout(2, {"data_parallel_shard": 1, "tensor_parallel": 2}),
    "FSDP2 2 x TP 2": Layout(4, {"tensor_parallel": 2}),
    "PP 2": Layout(2, {"data_parallel_shard": 1, "pipeline_parallel": 2}),
    "PP 2 x FSDP2 2": Layout(4, {"pipeline_parallel": 2}),
    "PP 2 interleaved": Layout(
        2,
        {"data_parallel_shard": 1, "pipeline_parallel": 2},
        {"schedule": "interleaved_1f1b", "stages_per_rank": 2},
    ),
}


def config(folder: Path, layout: Layout, total: int = 10) -> Any:
    job = jobs.training(
        folder,
        total,
        providers={"model": "tests.rig.layouts:tower", "task": "tests.rig.layouts:task"},
        batching={"global_batch_size": 8, "microbatch_size": 2},
        checkpointing={"save_dir": str(folder / "checkpoints"), "period_steps": 5, "num_to_keep": None},
        pipeline=layout.pipeline,
    )
    return type(job).model_validate({**job.model_dump(), "mesh": layout.mesh})


def _use_ddp() -> None:
    def wrap(model: nn.Module, mesh: Any, shape: Any, plan: Any) -> nn.Module:
        return nn.parallel.DistributedDataParallel(model)

    model_parts.parallelize = wrap


def run(folder: Path, layout: Layout, hook: Callable[[Any, int], None] | None = None, total: int = 10) -> list[Any]:
    """Run the job under a layout; `hook` is called in place of the training, with the loop and the step it is at."""

    def work() -> Any:
        if layout.ddp:
            _use_ddp()
        if hook is not None:
            loop_module.TrainingLoop.run = lambda self, loader, start, saver: hook(saver, start)
        reads = Reads()
        with reads.watched():
            TrainingJob(config(folder, layout, total)).run()
        return reads.found

    return forks.values(work, layout.ranks, seconds=120)


def stop_at_5(folder: Path, layout: Layout) -> None:
    """Train to step 5, save, and die."""

    def work() -> None:
        if layout.ddp:
            _use_ddp()
        loop_module.leave_if_asked = lambda saver, step, total: os._exit(9) if step == 5 else None
        TrainingJob(config(folder, layout)).run()

    assert {end.status for end in forks.run(work, layout.ranks, seconds=120)} == {9}


def save_again(target: Path) -> Callable[[Any, int], None]:
    """A hook that saves what was restored to another folder."""

    def hook(saver: Any, step: int) -> None:
        assert step == 5
        saver.folder, saver._last_step = target / "checkpoints" / "run", None
        saver._run = RunFolder(saver.folder, saver._world)
        assert saver.save(step)

    return hook


def begin_from(source: Path, folder: Path, layout: Layout) -> None:
    """A job that begins with these weights, makes a step that changes no bit, and saves."""

    def work() -> None:
        if layout.ddp:
            _use_ddp()
        job = config(folder, layout, 1).model_dump()
        job["trainer"] |= {
            "model_stage_factory": {"source_checkpoint": str(source)},
            "optimizer": {"kind": "sgd", "lr": 1e-35, "weight_decay": 0.0},
            "lr_scheduler": {"phases": []},
        }
        TrainingJob(type(config(folder, layout)).model_validate(job)).run()

    forks.values(work, layout.ranks, seconds=120)


class Reads:
    """What this rank has read of a checkpoint, and what it needed."""

    def __init__(self) -> None:
        self.found: dict[str, int] = {"read": 0, "needed": 0, "runs": 0}

    def watched(self) -> Any:
        from unittest import mock

        real, parts, found = reader_module._reads, reader_module.read_parts, self.found

        def reads(piece: Any, region: Box, target: torch.Tensor) -> Any:
            found["needed"] += target.numel() * target.element_size()
            found["runs"] += len(list(spans(piece.item.shape, region, gap=0, longest=1 << 40)))
            return real(piece, region, target)

        def read_parts(source: Any, reads: Any) -> None:
            before = source.total_read()
            parts(source, reads)
            # Trees are read in a pass of their own, which this one does not count.
            found["read"] += source.total_read() - before if found["needed"] else 0

        return mock.patch.multiple(reader_module, _reads=reads, read_parts=read_parts)


def within_bounds(found: dict[str, int]) -> bool:
    return found["read"] <= 1.05 * found["needed"] + 2 * BLOCK_SIZE * found["runs"]


def weights_and_moments(folder: Path, step: int) -> dict[str, Any]:
    """Everything of a checkpoint that no layout may change."""
    state = jobs.state(folder, step)
    layout_free = ("model.", "optimizer.", "lr_scheduler.", "task.", "step")
    return {key: value for key, value in state.items() if key.startswith(layout_free)}


def differences(a: dict[str, Any], b: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """How far apart equal keys are, relative to the largest value."""
    assert a.keys() == b.keys(), set(a) ^ set(b)
    for key, value in a.items():
        if not isinstance(value, list | float) or not key.startswith(("model.", "optimizer.state.")):
            assert value == b[key], key
            continue
        first, second = torch.tensor(value, dtype=torch.float64), torch.tensor(b[key], dtype=torch.float64)
        yield key, float((first - second).abs().max() / first.abs().max().clamp(min=1e-12)) if first.numel() else 0.0
