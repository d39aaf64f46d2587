"""The twin check passes a sound job, and names what was planted in a faulty one."""

import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader

import keepstep
from keepstep.job.inference import InferenceJob
from keepstep.job.train import TrainingJob
from keepstep.state.rng import RngComponent
from keepstep.testing import TwinReport, processes, twin_check
from tests.rig import jobs, spawned

LENGTH, BATCH, TOTAL = 18, 4, 30


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.linspace(-1, 1, 8) * (index + 1) / LENGTH


class Batches:
    """Batches in an order of its own for each epoch, with a position."""

    def __init__(self) -> None:
        self.epoch = self.at = 0

    def __len__(self) -> int:
        return -(-LENGTH // BATCH)

    def order(self) -> list[int]:
        return torch.randperm(LENGTH, generator=torch.Generator().manual_seed(self.epoch)).tolist()

    def __iter__(self) -> Iterator[torch.Tensor]:
        order = self.order()
        while self.at < LENGTH:
            ids = order[self.at : self.at + BATCH]
            self.at += BATCH
            yield torch.stack([Rows()[i] for i in ids])
        self.epoch, self.at = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.at = state["epoch"], state["at"]


class ForgetsItsEpoch(Batches):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class ForgetsItsPosition(Batches):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]


class FromTheGlobalState(Batches):
    def order(self) -> list[int]:
        return torch.randperm(LENGTH).tolist()


class FromPythonsState(Batches):
    def order(self) -> list[int]:
        return random.sample(range(LENGTH), LENGTH)


class Noisy(Batches):
    """Draws from the global states for each batch, as augmentation does."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for batch in super().__iter__():
            yield batch + 0.01 * torch.rand(8) + 0.01 * random.random() + 0.01 * float(np.random.rand())


class Forgetful:
    """A task whose load_state_dict brings nothing back."""

    def __init__(self) -> None:
        self.seen = 0

    def state_dict(self) -> dict[str, int]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, int]) -> None:
        pass


Hook = Callable[[dict[str, Any], int], None]


def job(
    loader: Callable[[], Any] = Batches,
    *,
    after_resume: Hook | None = None,
    after_step: Hook | None = None,
    without: tuple[str, ...] = (),
    task: Callable[[], Any] | None = None,
) -> Callable[[], None]:
    """A hand-written loop into which a fault can be planted."""

    def train() -> None:
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(5)
        model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Tanh(), nn.Linear(16, 4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, TOTAL)
        parts = {"model": model, "optimizer": optimizer, "lr_scheduler": scheduler, "data": loader()}
        if task is not None:
            parts["task"] = task()
        state = keepstep.JobState(**{name: part for name, part in parts.items() if name not in without})
        config = keepstep.CheckpointingConfig(save_dir="never-made", period_steps=10)
        with keepstep.Checkpointer(config, state, total_steps=TOTAL) as checkpointer:
            start = step = checkpointer.resume()
            parts["start"] = start
            if after_resume is not None:
                after_resume(parts, start)
            while step < TOTAL:
                for batch in parts["data"]:
                    step += 1
                    parts["model"](batch).square().mean().backward()
                    parts["optimizer"].step()
                    parts["optimizer"].zero_grad()
                    parts["lr_scheduler"].step()
                    if "task" in parts:
                        parts["task"].seen += 1
                    if after_step is not None:
                        after_step(parts, step)
                    checkpointer.save_if_due(step)
                    if step == TOTAL:
                        break

    return train


def check(train: Callable[..., None], tmp_path: Path, **more: Any) -> TwinReport:
    return twin_check(train, start_method="fork", timeout=60, folder=tmp_path / "twin", **more)


def test_a_sound_job_is_twin_equal_around_the_end_of_its_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report = check(job(), tmp_path)
    assert report.equal, report
    assert report.stops == (3, 5, 7)
    assert "twin-equal up to step 10: stopped and resumed at step 3, 5, 7" in str(report)
    assert not (tmp_path / "never-made").exists()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_of_torchdata_is_twin_equal(tmp_path: Path, workers: int) -> None:
    report = check(job(lambda: StatefulDataLoader(Rows(), BATCH, shuffle=True, num_workers=workers)), tmp_path)
    assert report.equal, report


def test_random_numbers_from_all_states_are_twin_equal(tmp_path: Path) -> None:
    report = check(job(Noisy), tmp_path)
    assert report.equal, report


def new_optimizer(parts: dict[str, Any], start: int) -> None:
    parts["optimizer"] = torch.optim.AdamW(parts["model"].parameters(), lr=0.05)


def new_optimizer_when_resumed(parts: dict[str, Any], start: int) -> None:
    if start:
        new_optimizer(parts, start)


def new_everything(parts: dict[str, Any], start: int) -> None:
    new_optimizer(parts, start)
    parts["lr_scheduler"] = torch.optim.lr_scheduler.CosineAnnealingLR(parts["optimizer"], TOTAL)


def step_again(parts: dict[str, Any], start: int) -> None:
    for _ in range(start):
        parts["lr_scheduler"].step()


def step_twice_once(parts: dict[str, Any], step: int) -> None:
    if parts["start"] and step == parts["start"] + 1:
        parts["lr_scheduler"].step()


def reset_weights(parts: dict[str, Any], start: int) -> None:
    torch.nn.init.constant_(parts["model"][0].weight, 0.1)


def draw(parts: dict[str, Any], start: int) -> None:
    torch.rand(1)


@pytest.mark.parametrize(
    ("faulty", "component", "words"),
    [
        (job(after_resume=lambda parts, start: torch.manual_seed(5)), "rng", "torch.manual_seed at test_twin.py"),
        (
            job(Noisy, after_resume=lambda parts, start, seed=torch.manual_seed: seed(1)),
            "rng",
            "those of the run's first step",
        ),
        (job(Noisy, after_resume=lambda parts, start: random.seed(1)), "rng", "random.seed at"),
        (job(Noisy, after_resume=lambda parts, start: np.random.seed(1)), "rng", "numpy.random.seed at"),
        (job(after_resume=new_optimizer), "optimizer", "built after resume()"),
        (job(after_resume=new_optimizer_when_resumed), "optimizer", "built after resume()"),
        (job(after_resume=new_everything), "optimizer", "built after resume()"),
        (job(without=("optimizer",)), "optimizer", "no optimizer is registered"),
        (job(FromTheGlobalState), "data", "global random state"),
        (job(FromPythonsState), "data", "numbers of python were drawn"),
        (job(after_resume=step_again), "lr_scheduler", "do not step it again"),
        (job(after_step=step_twice_once), "lr_scheduler", "more or less often"),
        (job(without=("lr_scheduler",)), "lr_scheduler", "no lr_scheduler is registered"),
        (job(ForgetsItsEpoch), "data", "forgotten its epoch"),
        (job(lambda: noise_of_its_own()), "data", "random order is not restored"),
        (job(ForgetsItsPosition), "data", "began anew"),
        (job(without=("data",)), "data", "began anew"),
        (job(after_resume=reset_weights), "model", "the weights were set again"),
        (job(after_resume=lambda parts, start: draw(parts, start) if start else None), "rng", "drew random numbers"),
        (job(task=Forgetful), "task", "does not bring back"),
    ],
)
def test_a_planted_fault_is_named(tmp_path: Path, faulty: Callable[[], None], component: str, words: str) -> None:
    report = check(faulty, tmp_path)
    assert report.divergence is not None
    assert report.divergence.component == component, report
    assert words in str(report)
    assert report.divergence.step == report.at + 1 or component == "lr_scheduler"


def test_random_states_that_are_not_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RngComponent, "apply", lambda self, values: None)
    report = check(job(), tmp_path)
    assert report.divergence is not None
    assert (report.divergence.component, report.divergence.step) == ("rng", 4)
    assert "the random states were not restored" in str(report)


def test_a_job_that_does_not_repeat_itself_is_not_blamed_on_the_resume(tmp_path: Path) -> None:
    report = check(
        job(task=lambda: type("Clock", (Forgetful,), {"state_dict": lambda s: {"seen": new_number()}})()), tmp_path
    )
    assert report.at == 0
    assert "does not repeat itself" in str(report)
    assert report.divergence is not None
    assert report.divergence.component == "task"


def new_number() -> int:
    return int.from_bytes(Path("/dev/urandom").open("rb").read(6), "little")


def test_state_like_a_clocks_can_be_left_out(tmp_path: Path) -> None:
    clock = type("Clock", (Forgetful,), {"state_dict": lambda s: {"seen": new_number()}})
    report = check(job(task=clock), tmp_path, ignore=["task.*"])
    assert report.equal, report


def test_a_state_that_nobody_uses_need_not_be_seeded(tmp_path: Path) -> None:
    def train() -> None:
        plain = job()
        real, random.seed = random.seed, lambda n: real(new_number())
        plain()

    report = check(train, tmp_path)
    assert report.equal, report


def on_two_ranks() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    torch.manual_seed(rank)
    batches = Batches()
    batches.epoch = 100 * rank
    state = keepstep.JobState(model=model, data=batches, task=keepstep.PerRank(Forgetful()))
    with keepstep.Checkpointer(
        keepstep.CheckpointingConfig(save_dir="never", period_steps=5), state, total_steps=9
    ) as checkpointer:
        step = checkpointer.resume()
        for batch in batches:
            step += 1
            model(batch)
            if rank and step > 3 and checkpointer._last_step == 3:
                torch.rand(1)
            checkpointer.save_if_due(step)


def test_a_rank_is_named(tmp_path: Path) -> None:
    report = check(on_two_ranks, tmp_path, ranks=2, stops=[3])
    assert report.divergence is not None
    assert report.divergence.rank == 1, report
    assert report.divergence.component == "rng"
    assert "rank 1" in str(report)


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (lambda: None, "made no Checkpointer"),
        (lambda: 1 / 0, "ZeroDivisionError"),
        (
            lambda: keepstep.Checkpointer(
                keepstep.CheckpointingConfig(save_dir="x", period_steps=5), keepstep.JobState()
            ),
            "without a step",
        ),
    ],
)
def test_a_job_that_cannot_be_compared_says_why(tmp_path: Path, work: Callable[[], None], words: str) -> None:
    with pytest.raises(keepstep.TwinCheckError, match=words):
        check(work, tmp_path)


def test_a_job_that_hangs_is_ended(tmp_path: Path) -> None:
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    with pytest.raises(keepstep.TwinCheckError, match=r"still running after 0\.5 s"):
        twin_check(sleeper, timeout=0.5, folder=tmp_path)


def test_a_function_in_fresh_processes(tmp_path: Path) -> None:
    report = twin_check(spawned.train, stops=[4], folder=tmp_path)
    assert report.equal, report
    assert (report.stops, report.steps) == ((4,), 7)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_job_of_keepsteps_own(tmp_path: Path, ranks: int) -> None:
    config = jobs.training(tmp_path, 9, providers={"dataset": "tests.rig.jobs:augmented"}, logging={"period_steps": 1})
    report = check(lambda: TrainingJob(config).run(), tmp_path, ranks=ranks)
    assert report.equal, report
    assert report.stops == (3, 4, 6)
    assert not (tmp_path / "checkpoints").exists()


def test_an_inference_job(tmp_path: Path) -> None:
    config = jobs.inference(tmp_path, output_to=None)
    report = check(lambda: InferenceJob(config).run(), tmp_path)
    assert report.equal, report
    assert not (tmp_path / "inference").exists()


def look_at_the_model(parts: dict[str, Any], start: int) -> None:
    parts["model"].eval()
    parts["model"](torch.zeros(1, 8))
    parts["model"].train()


def test_a_look_at_the_model_between_steps_is_no_step(tmp_path: Path) -> None:
    report = check(job(after_resume=look_at_the_model), tmp_path)
    assert report.equal, report


def compiled(parts: dict[str, Any], start: int) -> None:
    parts["model"] = torch.compile(parts["model"], backend="eager", fullgraph=True)


def test_a_compiled_model_is_not_disturbed(tmp_path: Path) -> None:
    report = check(job(after_resume=compiled), tmp_path, stops=[2])
    assert report.equal, report


def test_a_job_that_saves_at_the_end_of_its_epochs_only(tmp_path: Path) -> None:
    def train() -> None:
        torch.manual_seed(0)
        model = nn.Linear(8, 4)
        config = keepstep.CheckpointingConfig(save_dir="never", period_steps=5)
        with keepstep.Checkpointer(config, keepstep.JobState(model=model)) as checkpointer:
            for step in range(checkpointer.resume() + 1, 31):
                model(torch.rand(8))
                if step % 5 == 0:
                    checkpointer.save(step)

    report = check(train, tmp_path)
    assert report.equal, report
    assert report.stops == (5, 15)


def test_what_was_not_looked_at_is_said(tmp_path: Path) -> None:
    class Endless(Batches):
        __len__ = None  # type: ignore[assignment]

    assert "how long an epoch is was not seen" in str(check(job(Endless), tmp_path, stops=[2]))
    assert "no stop lies behind the end of an epoch (5 steps)" in str(check(job(), tmp_path, stops=[2]))
    assert "note" not in str(check(job(), tmp_path, stops=[2, 6]))


def test_a_stream_is_stopped_behind_its_end(tmp_path: Path) -> None:
    config = jobs.training(tmp_path, 30, providers={"dataset": "tests.rig.streams:plain_stream"})
    report = check(lambda: TrainingJob(config).run(), tmp_path)
    assert report.equal, report
    assert report.stops == (3, 6, 8)


def noise_of_its_own() -> Any:
    class Own(Batches):
        def __init__(self) -> None:
            super().__init__()
            self.noise = np.random.default_rng(0)

        def __iter__(self) -> Iterator[torch.Tensor]:
            for batch in super().__iter__():
                yield batch + float(self.noise.random())

    return Own()


def test_a_method_in_place_of_forward_is_said(tmp_path: Path) -> None:
    def train() -> None:
        torch.manual_seed(0)
        model = nn.Linear(8, 4)
        optimizer = torch.optim.AdamW(model.parameters())
        batches = ForgetsItsPosition()
        state = keepstep.JobState(model=model, optimizer=optimizer, data=batches)
        config = keepstep.CheckpointingConfig(save_dir="never", period_steps=5)
        with keepstep.Checkpointer(config, state) as checkpointer:
            step = checkpointer.resume()
            for batch in batches:
                step += 1
                nn.functional.linear(batch, model.weight, model.bias).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                checkpointer.save_if_due(step)

    assert "no forward pass of the registered model was seen" in str(check(train, tmp_path, stops=[2]))


def test_the_same_folder_may_be_used_again(tmp_path: Path) -> None:
    assert check(job(), tmp_path, stops=[4]).equal
    assert check(job(), tmp_path, stops=[2]).equal


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(keepstep.TwinCheckError, match="cannot start nowhere"):
        twin_check(["nowhere"], folder=tmp_path)


def test_ranks_in_sessions_of_their_own_end_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a launcher's do, which is killed before it can end them."""
    monkeypatch.setattr(processes, "_GRACE_SECONDS", 1)
    script = (
        "import os, subprocess, sys, time, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)'], start_new_session=True);"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid)); time.sleep(99)"
    )
    begin = time.monotonic()
    with pytest.raises(keepstep.TwinCheckError, match="still running"):
        twin_check([sys.executable, "-c", script], folder=tmp_path / "work", timeout=2)
    pid = (tmp_path / "pid").read_text()
    assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text()
    assert time.monotonic() - begin < 25


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "stopped").mkdir()
    (tmp_path / "stopped" / "mine").write_text("precious")
    with pytest.raises(keepstep.TwinCheckError, match="no check's"):
        twin_check(job(), folder=tmp_path, start_method="fork")
    assert (tmp_path / "stopped" / "mine").read_text() == "precious"
