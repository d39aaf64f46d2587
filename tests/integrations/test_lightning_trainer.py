"""Lightning's Trainer made resumable: what it goes on from, what it says, several ranks, folders of FSDP2, threads."""

import logging
import os
import pickle
import re
import runpy
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lightning", reason="Lightning is not installed: pip install keepstep[lightning]")

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard

from keepstep.errors import ConfigError, DamagedCheckpointError
from keepstep.integrations.lightning import VerifiedCheckpointIO, enable, make_resumable, newest_verified
from keepstep.testing.faults import cut, flip_bit
from tests.rig import forks
from tests.rig import lightning_job as job

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The twin: never interrupted, and without keepstep."""
    folder = tmp_path_factory.mktemp("twin")
    (value,) = forks.values(lambda: job.train(folder, path=None, resumable=False))
    assert len(value["losses"]) == 20
    return dict(value)


def killed(folder: Path, step: int, **options: Any) -> None:
    (ended,) = forks.run(lambda: job.train(folder, job.EndAt(step), **options))
    assert ended.status == 9, ended.error


def goes_on_from(folder: Path, start: int, whole: dict[str, Any], **options: Any) -> str:
    """Train to the end; it is the twin. Returns what was logged."""
    log = folder / "log"

    def logged() -> Any:
        logging.basicConfig(filename=log, level=logging.INFO, force=True)
        return job.train(folder, **options)

    (value,) = forks.values(logged)
    assert value["start"] == start
    assert value["losses"] == whole["losses"][start:]
    assert value["weights"] == whole["weights"]
    return log.read_text()


@pytest.mark.parametrize(("at", "start"), [(2, 0), (8, 6), (10, 9), (16, 15)])
def test_killed_anywhere_and_started_again_it_is_the_twin(
    tmp_path: Path, whole: dict[str, Any], at: int, start: int
) -> None:
    killed(tmp_path, at)
    log = goes_on_from(tmp_path, start, whole)
    said = f"resumed from step {start} ({tmp_path}/last.ckpt)" if start else "starting from the first step"
    assert said in log


@pytest.mark.parametrize("harm", ["gone", "damaged", "none", "link"])
def test_without_last_the_newest_good_one_is_taken(tmp_path: Path, whole: dict[str, Any], harm: str) -> None:
    saving = {"save_last": {"none": None, "link": "link"}.get(harm, True)}
    killed(tmp_path, 8, saving=saving)
    if harm == "gone":
        (tmp_path / "last.ckpt").unlink()
    elif harm == "damaged":
        flip_bit(tmp_path / "last.ckpt", 5000)
    log = goes_on_from(tmp_path, 6, whole, saving=saving)
    assert ("last.ckpt is damaged and passed over" in log) == (harm == "damaged")
    assert f"resumed from step 6 ({tmp_path}/ck-step=6.ckpt)" in log


def test_the_newest_step_is_damaged_everywhere_and_the_one_before_is_taken(
    tmp_path: Path, whole: dict[str, Any]
) -> None:
    killed(tmp_path, 8)
    for name in ("last.ckpt", "ck-step=6.ckpt"):
        flip_bit(tmp_path / name, 5000)
    goes_on_from(tmp_path, 3, whole)
    assert newest_verified(tmp_path) == tmp_path / "last-v1.ckpt"


def test_nothing_good_is_an_error_and_no_fresh_start(tmp_path: Path) -> None:
    killed(tmp_path, 5)
    for path in tmp_path.glob("*.ckpt"):
        flip_bit(path, 5000)
    (ended,) = forks.run(lambda: job.train(tmp_path))
    assert isinstance(ended.error, DamagedCheckpointError)
    assert "last.ckpt" in str(ended.error)


def test_an_explicit_path_and_best_are_verified_too(tmp_path: Path) -> None:
    killed(tmp_path, 8)
    (value,) = forks.values(lambda: job.train(tmp_path, path=tmp_path / "ck-step=3.ckpt"))
    assert value["start"] == 3
    flip_bit(tmp_path / "ck-step=3.ckpt", 5000)
    (ended,) = forks.run(lambda: job.train(tmp_path, path=tmp_path / "ck-step=3.ckpt"))
    assert isinstance(ended.error, DamagedCheckpointError)

    def best() -> None:
        trainer = job.trainer(tmp_path, saving={"save_top_k": 1})
        module = job.Module()
        trainer.fit(module, job.with_position())
        flip_bit(Path(trainer.checkpoint_callback.best_model_path), 5000)
        trainer.validate(module, ckpt_path="best", dataloaders=job.in_order())

    job.Module.validation_step = lambda *_: None  # type: ignore[method-assign]
    (ended,) = forks.run(best)
    assert isinstance(ended.error, DamagedCheckpointError)


def test_the_best_are_kept_and_a_kill_between_save_and_removal_loses_nothing(
    tmp_path: Path, whole: dict[str, Any]
) -> None:
    saving = {"save_top_k": 1, "save_last": None}

    def until_removal() -> None:
        ModelCheckpoint._remove_checkpoint = lambda *_: os._exit(9)  # type: ignore[method-assign, assignment]
        job.train(tmp_path, saving=saving)

    (ended,) = forks.run(until_removal)
    assert ended.status == 9
    assert sorted(path.name for path in tmp_path.glob("*.ckpt")) == ["ck-step=3.ckpt", "ck-step=6.ckpt"]
    goes_on_from(tmp_path, 6, whole, saving=saving)
    # Lightning never removes what it went on from, and knows nothing of what it had not removed before.
    assert newest_verified(tmp_path) == tmp_path / "ck-step=18.ckpt"


def test_a_removal_waits_for_the_asynchronous_save_before_it(tmp_path: Path, whole: dict[str, Any]) -> None:
    saving = {"save_top_k": 1, "save_last": None}

    def slow() -> None:
        save = VerifiedCheckpointIO.save_checkpoint

        def save_slowly(self: Any, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
            if "step=6" in str(path):
                time.sleep(0.5)
                os._exit(9)
            save(self, checkpoint, path)

        VerifiedCheckpointIO.save_checkpoint = save_slowly
        job.train(tmp_path, saving=saving, plugins=[AsyncCheckpointIO()])

    (ended,) = forks.run(slow)
    assert ended.status == 9
    goes_on_from(tmp_path, 3, whole, saving=saving, plugins=[AsyncCheckpointIO()])
    assert newest_verified(tmp_path) == tmp_path / "ck-step=18.ckpt"


def test_what_plain_lightning_has_saved_is_gone_on_from_by_its_own_rule(tmp_path: Path, whole: dict[str, Any]) -> None:
    killed(tmp_path, 8, resumable=False)
    log = goes_on_from(tmp_path, 6, whole)
    assert "Lightning's own rule decides" in log
    assert newest_verified(tmp_path) == tmp_path / "last.ckpt"


def test_a_trainer_that_cannot_be_made_resumable_is_refused_by_name(tmp_path: Path) -> None:
    class Own(TorchCheckpointIO):
        pass

    with pytest.raises(ConfigError, match="Own"):
        make_resumable(pl.Trainer(accelerator="cpu", logger=False, plugins=[Own()]))
    with pytest.raises(ConfigError, match="no Trainer"):
        make_resumable(object())
    trainer = job.trainer(tmp_path)
    make_resumable(trainer)
    again = pickle.loads(pickle.dumps(trainer))
    assert type(again.strategy.checkpoint_io) is VerifiedCheckpointIO
    assert again._checkpoint_connector.resume_start.args == (again._checkpoint_connector,)


def test_enabled_for_a_trainer_that_cannot_be_it_warns_and_leaves_it(tmp_path: Path) -> None:
    class Own(TorchCheckpointIO):
        pass

    def made() -> bool:
        enable()
        enable()
        logging.basicConfig(filename=tmp_path / "log", force=True)
        own = pl.Trainer(accelerator="cpu", logger=False, plugins=[Own()])
        plain = pl.Trainer(accelerator="cpu", logger=False)
        return type(own.strategy.checkpoint_io) is Own and type(plain.strategy.checkpoint_io) is VerifiedCheckpointIO

    assert forks.values(made) == [True]
    assert "left as it is, its checkpoints unverified: the Trainer saves by Own" in (tmp_path / "log").read_text()


def test_two_ranks_choose_what_rank_0_sees(tmp_path: Path) -> None:
    options: dict[str, Any] = {"ranks": 2, "loader": lambda: job.in_order(2), "saving": {"every_n_train_steps": 10}}
    twin = forks.values(lambda: job.train(tmp_path / "twin", path=None, resumable=False, **options), 2)
    ended = forks.run(lambda: job.train(tmp_path / "run", job.EndAt(12), **options), 2)
    assert [one.status for one in ended] == [9, 9]
    flip_bit(tmp_path / "run" / "last.ckpt", 5000)
    values = forks.values(lambda: job.train(tmp_path / "run", **options), 2)
    assert [value["start"] for value in values] == [10, 10]
    assert [value["weights"] for value in values] == [value["weights"] for value in twin]
    assert [value["losses"] for value in values] == [value["losses"][10:] for value in twin]
    for path in (tmp_path / "run").glob("*.ckpt"):
        cut(path, 5000)
    ended = forks.run(lambda: job.train(tmp_path / "run", **options), 2)
    assert {type(one.error) for one in ended} == {DamagedCheckpointError}


class Sharded(job.Module):
    def configure_model(self) -> None:
        fully_shard(self.net, mesh=self.device_mesh["data_parallel"])


def test_the_folders_of_two_fsdp2_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "Module", Sharded)

    def train(folder: Path, *callbacks: Any, **more: Any) -> Any:
        strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
        saving = {"every_n_train_steps": 10}
        return job.train(
            folder, *callbacks, ranks=2, strategy=strategy, loader=lambda: job.in_order(2), saving=saving, **more
        )

    twin = forks.values(lambda: train(tmp_path / "twin", path=None, resumable=False), 2)
    run = tmp_path / "run"
    assert [one.status for one in forks.run(lambda: train(run, job.EndAt(12)), 2)] == [9, 9]
    assert (run / "last.ckpt" / ".metadata").is_file()
    flip_bit(run / "last.ckpt" / "__1_0.distcp", -100)
    values = forks.values(lambda: train(run), 2)
    assert [value["start"] for value in values] == [10, 10]
    assert [value["weights"] for value in values] == [value["weights"] for value in twin]
    assert newest_verified(run) == run / "last-v1.ckpt"
    assert not [path for path in run.iterdir() if ".tmp-" in path.name or ".del-" in path.name]
    flip_bit(run / "last-v1.ckpt" / "__0_0.distcp", -100)
    ended = forks.run(lambda: train(run, path=run / "last-v1.ckpt"), 2)
    assert {type(one.error) for one in ended} == {DamagedCheckpointError}


def test_the_example_of_the_docs_twice_and_enabled_from_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/lightning.md").read_text(), re.DOTALL)
    (tmp_path / "train.py").write_text(block)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "from keepstep.integrations.lightning import enable\nenable()\n"
    )
    # The same with nothing of keepstep in it, and with Lightning's other name.
    outside = block.replace("make_resumable(trainer)\n", "").replace("lightning.pytorch", "pytorch_lightning")
    outside = outside.replace("from keepstep.integrations.lightning import make_resumable\n", "")
    assert "keepstep" not in outside
    (tmp_path / "outside.py").write_text(outside)
    path = f"{tmp_path / 'site'}{os.pathsep}{ROOT / 'src'}"

    def first() -> str:
        runpy.run_path("train.py", run_name="__main__")
        return caplog.text

    with caplog.at_level(logging.INFO, logger="keepstep"):
        (said,) = forks.values(first)
    assert "starting from the first step" in said
    (tmp_path / "runs" / "mine" / "last.ckpt").unlink()
    command, environment = [sys.executable, "outside.py"], {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    assert "resumed from step 100" in done.stdout + done.stderr


@pytest.fixture(autouse=True)
def _one_thread_and_no_leftover(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
