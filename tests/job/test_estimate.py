"""What is estimated of a job against the checkpoint that it writes."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from keepstep.config import JobConfig
from keepstep.errors import ConfigError
from keepstep.job.estimate import look_at_job
from keepstep.job.meta_model import weights_by_transformers
from keepstep.job.protocols import JobContext
from keepstep.job.train import TrainingJob
from keepstep.ops.estimate import estimate_checkpoint
from keepstep.plan.estimate import Ranks, Retention, estimate
from keepstep.plan.model_size import HEAD, parameters_of
from tests.rig import forks, jobs

# Bytes. An item's frame, entries and page may take that much more or less than is counted for it; a job has further
# state: scheduler, position, metrics, tracker, task.
EACH, FURTHER = 1_000, 32_000


class Wide(nn.Module):
    """Large and small tensors, a tie, a buffer, and a layer that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 512)
        self.layers = nn.ModuleList([nn.Linear(512, 301), nn.Linear(301, 512)])
        self.frozen = nn.Linear(512, 16).requires_grad_(False)
        self.head = nn.Linear(16, 8)
        self.tied = nn.Linear(8, 512)
        self.tied.weight = self.embed.weight
        self.register_buffer("offset", torch.zeros(70, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x) + self.tied(x)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(self.frozen(x) + self.offset[0])


def wide(context: JobContext) -> Wide:
    return Wide()


def reads_values(context: JobContext) -> nn.Module:
    net = Wide()
    assert float(net.offset.sum()) == 0  # which cannot be asked on the meta device
    return net


def no_module(context: JobContext) -> int:
    return 3


class Picky(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        raise RuntimeError("looks at values") if self.param_groups[0]["params"][0].is_meta else None


def picky(context: JobContext, model: nn.Module) -> Picky:
    return Picky(model.parameters(), lr=0.1)


def rmsprop(context: JobContext, model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.RMSprop([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.5)


def here(name: str) -> str:
    return f"{__name__}:{name}"


def job(folder: Path, mesh: dict[str, int] | None = None, **trainer: Any) -> JobConfig:
    config = jobs.training(folder, 4, providers={"model": here("wide")}, **trainer)
    return config.model_copy(update={"mesh": type(config.mesh)(**mesh)}) if mesh else config


@pytest.mark.parametrize(
    ("mesh", "world"),
    [(None, 1), ({"data_parallel_shard": 2}, 2), ({"data_parallel_replicate": 2, "data_parallel_shard": 1}, 2)],
    ids=["one rank", "shards", "replicas"],
)
def test_a_job_writes_what_was_estimated(tmp_path: Path, mesh: dict[str, int] | None, world: int) -> None:
    config = job(tmp_path, mesh)
    told = look_at_job(config, world)
    said = estimate("job", told.content, told.ranks, told.kept)
    forks.values(lambda: TrainingJob(config).run(), world)
    found = estimate_checkpoint(tmp_path / "checkpoints" / "run")
    assert found.world == said.world == world
    items = sum(held.count for held in told.content.held) * told.ranks.shard
    assert abs(found.size - said.size) < EACH * items + FURTHER * world
    # Replicas are divided tensor by tensor: the largest is one layer with 512 x 301 numbers.
    uneven = 512 * 301 * 4 if told.ranks.replicate > 1 else 0
    assert abs(found.rank_size - said.rank_size) < EACH * items + FURTHER + uneven
    assert found.parameters is not None
    assert found.parameters >= (said.parameters or 0)  # buffers are among the numbers of what is there


def test_what_a_job_holds(tmp_path: Path) -> None:
    told = look_at_job(job(tmp_path), 1)
    size = {part: sum(h.size for h in told.content.held if h.part == part) for part in ("weights", "frozen weights")}
    frozen = 512 * 16 + 16
    trained = sum(p.numel() for p in Wide().parameters()) - frozen
    assert size == {"weights": 4 * trained, "frozen weights": 4 * frozen}
    assert (told.content.parameters, told.content.trained) == (trained + frozen, trained)
    assert sum(h.size for h in told.content.held if h.part == "optimizer") == 8 * trained
    assert sum(h.size for h in told.content.held if h.part == "buffers") == 70 * 16 * 4
    assert (told.ranks, told.kept) == (Ranks(), Retention(1, 1))  # 4 steps, saved every 4


def test_a_trainable_only_checkpoint_holds_the_rest(tmp_path: Path) -> None:
    factory = {"source_checkpoint": "anywhere", "checkpoint_only_trainable_parameters": True}
    told = look_at_job(job(tmp_path, model_stage_factory=factory), 1)
    assert {held.part for held in told.content.held} == {"weights", "optimizer"}
    assert told.content.digests == 2
    told = look_at_job(job(tmp_path, model_stage_factory=factory | {"checkpoint_buffers": True}), 1)
    assert {held.part for held in told.content.held} == {"weights", "optimizer", "buffers"}


def test_an_optimizer_of_ones_own_is_asked(tmp_path: Path) -> None:
    providers = {"model": here("wide"), "optimizer": here("rmsprop")}
    told = look_at_job(jobs.training(tmp_path, 100, providers=providers), 1, keep=5)
    assert sum(h.size for h in told.content.held if h.part == "optimizer") == 8 * told.content.trained
    assert told.kept == Retention(5, 6)


def kept_by(folder: Path, period: int = 5, newest: int | None = 2, **rules: Any) -> tuple[Retention | None, str]:
    settings = {"save_dir": str(folder), "period_steps": period, "num_to_keep": newest, "keep": rules}
    told = look_at_job(jobs.training(folder, 100, providers={"model": here("wide")}, checkpointing=settings), 1)
    return told.kept, "; ".join(told.notes)


def test_what_a_job_keeps_beside_the_newest(tmp_path: Path) -> None:
    best = [{"metric": "task/a", "mode": "max", "number": 3}, {"metric": "task/b", "mode": "min"}]
    kept, notes = kept_by(tmp_path, every_steps=25, best=best)
    assert kept == Retention(2 + 4 + 4, 11)
    assert notes == "beside the 2 newest there are at most keep.every_steps 4, keep.best 4; some may be the same"
    assert kept_by(tmp_path, every_steps=1)[0] == Retention(20, 20)  # no more than are saved
    kept, notes = kept_by(tmp_path, younger_than_hours=3.0)
    assert kept == Retention(2, 3)
    assert "younger_than_hours keeps is not counted" in notes
    kept, notes = kept_by(tmp_path, newest=None, disk_budget_gb=1.5)
    assert kept == Retention(20, 20, 1_500_000_000)
    assert "keep.disk_budget_gb lets 1.5 GB remain" in notes


def test_a_model_that_needs_values_is_built_on_the_cpu(tmp_path: Path) -> None:
    providers = {"model": here("reads_values")}
    assert look_at_job(jobs.training(tmp_path, providers=providers), 1).content == look_at_job(job(tmp_path), 1).content


@pytest.mark.parametrize(
    ("providers", "problem"),
    [
        ({"model": here("no_module")}, "returned a int, and no module"),
        ({"model": "tests.rig.jobs:broken"}, "must not be called"),
        ({"model": here("wide"), "optimizer": here("picky")}, "cannot be told without values .*looks at values"),
    ],
)
def test_what_cannot_be_told(tmp_path: Path, providers: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        look_at_job(jobs.training(tmp_path, providers=providers), 1)


def test_an_inference_job_and_a_mesh_that_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="which grows"):
        look_at_job(jobs.inference(tmp_path), 1)
    with pytest.raises(ConfigError, match="does not make up"):
        look_at_job(job(tmp_path, {"data_parallel_shard": 3}), 2)


PHI = {
    "model_type": "phi3",
    "vocab_size": 97,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "pad_token_id": 0,
}


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"architectures": ["Phi3ForCausalLM"]},
        {"architectures": ["pipeline"], "auto_map": {"AutoModelForCausalLM": "beside.Mine"}},
    ],
    ids=["by type", "by class", "with code that is not run"],
)
def test_a_family_that_only_transformers_knows(told: dict[str, Any]) -> None:
    weights = weights_by_transformers(PHI | told, "config.json")
    # Two layers of qkv, o, gate and up, down, and two norms; a last norm, embedding and output.
    assert parameters_of(weights) == 2 * (24 * 72 + 24 * 24 + 24 * 80 + 40 * 24 + 2 * 24) + 24 + 2 * 97 * 24
    assert [weight.module for weight in weights if weight.is_linear][-1] == HEAD
    tied = weights_by_transformers(PHI | told | {"tie_word_embeddings": True}, "config.json")
    assert parameters_of(weights) - parameters_of(tied) == 97 * 24


@pytest.mark.parametrize("config", [{"model_type": "unheard-of"}, {}, {"model_type": "phi3", "hidden_size": "many"}])
def test_a_model_that_nobody_knows(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="give --parameters"):
        weights_by_transformers(config, "config.json")


def test_a_type_with_control_characters_is_written_out() -> None:
    with pytest.raises(ConfigError) as caught:
        weights_by_transformers({"model_type": "foo\x1b[31mbar"}, "config.json")
    assert str(caught.value).isprintable()


def test_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match="install transformers, which may know it, or give --parameters"):
        weights_by_transformers(PHI, "config.json")
