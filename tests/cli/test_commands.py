"""The command line as a person meets it: output, exit codes, one-line errors."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.rig import jobs
from tests.rig.command import keepstep, keepstep_forked
from tests.rig.folders import make_checkpoint


def in_a_process(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    script = "import sys; from keepstep.cli.main import main; main()"
    root = str(Path(__file__).parents[2])
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{root}/src:{root}", "COLUMNS": "200", **environment},
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in (5, 10, 15):
        make_checkpoint(tmp_path / "run", step)
    return tmp_path / "run"


def test_ls(run: Path) -> None:
    done = keepstep("ls", str(run))
    assert done.returncode == 0
    assert [line.split()[:2] for line in done.stdout.splitlines()[1:]] == [[s, "complete"] for s in ("5", "10", "15")]
    facts = json.loads(keepstep("ls", str(run), "--json").stdout)
    assert [c["step"] for c in facts["checkpoints"]] == [5, 10, 15]
    missing = keepstep("ls", str(run / "nowhere"))
    assert missing.returncode == 1
    assert missing.stderr.count("\n") == 1
    assert "there is no such folder" in missing.stderr


def test_show(run: Path) -> None:
    done = keepstep("show", str(run / "save-5"))
    assert done.returncode == 0
    assert "step 5" in done.stdout
    assert "model.first" in done.stdout
    assert json.loads(keepstep("show", str(run / "save-5"), "--json").stdout)["parameters"] == 10_000


def test_verify(run: Path) -> None:
    assert keepstep("verify", str(run)).returncode == 0
    os.truncate(run / "save-10" / "__0_0.distcp", 7)
    done = keepstep("verify", str(run))
    assert done.returncode == 1
    assert "__0_0.distcp has 7 bytes, not 40000" in done.stdout
    facts = json.loads(keepstep("verify", str(run), "--json").stdout)
    assert [f["condition"] for f in facts] == ["complete", "damaged", "complete"]


def test_prune(run: Path) -> None:
    dry = keepstep("prune", str(run), "--keep", "1", "--dry-run")
    assert dry.stdout.count("would delete") == 2
    assert len(os.listdir(run)) == 3
    wet = keepstep("prune", str(run), "--keep", "1", "--json")
    assert [v["keep"] for v in json.loads(wet.stdout)["verdicts"]] == [False, False, True]
    assert os.listdir(run) == ["save-15"]
    assert keepstep("prune", str(run), "--keep", "0").returncode == 2


@pytest.mark.parametrize(
    "command",
    [
        *("train", "infer", "can-resume", "ls", "show", "diff", "convert", "verify", "pull", "push", "prune", "adopt"),
        *("audit", "selftest", "best", "pin", "unpin"),
    ],
)
def test_every_command_has_help_with_an_example(command: str) -> None:
    done = keepstep(command, "--help")
    assert done.returncode == 0
    assert f"Example: keepstep {command}" in done.stdout


def test_the_version() -> None:
    done = in_a_process("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("keepstep ")


@pytest.mark.parametrize("arguments", [["nonsense"], ["ls"], ["train"], ["ls", "--nonsense"], ["prune", "x"]])
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    assert keepstep(*arguments).returncode == 2


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    config = jobs.training(tmp_path, 8).model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    file.write_text(yaml.safe_dump(config))
    return file


@pytest.mark.parametrize(
    ("override", "text"),
    [
        (
            "trainer.checkpointing.period_steps=0",
            'period_steps = 0: must be a whole number of steps, 1 or more, or "last',
        ),
        ("trainer.checkpointing.num_to_keep=-1", "num_to_keep = -1: must be"),
        ("trainer.total_step=5", "trainer.total_step: unknown key; did you mean total_steps?"),
        ("providers.model=nowhere:build", "providers.model = 'nowhere:build': nowhere does not import"),
        ("providers.model=tests.rig.jobs:nowhere", "tests.rig.jobs has no nowhere"),
        ("providers.model=tests.rig.jobs:PROVIDERS", "must be a function"),
        ("trainer.batching.microbatch_size=3", "sizes that work"),
    ],
)
def test_a_wrong_job_is_refused_in_one_line_before_anything_starts(job_file: Path, override: str, text: str) -> None:
    done = keepstep("train", str(job_file), "--set", override)
    assert done.returncode == 2
    assert text in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(os.listdir(job_file.parent)) == ["job.yaml"]


def test_a_missing_file_and_the_wrong_kind_are_refused(job_file: Path) -> None:
    assert keepstep("train", "nowhere.yaml").returncode == 2
    done = keepstep("infer", str(job_file))
    assert done.returncode == 2
    assert "keepstep train" in done.stderr


def test_a_job_from_start_to_already_complete_and_to_an_error_under_launchers(job_file: Path) -> None:
    """It begins under torch's launcher and goes on under keepstep's: a start of two ranks costs seconds."""
    first = under_torchrun("train", str(job_file), "--set", "trainer.total_steps=4")
    assert first.returncode == 0, first.stderr
    assert first.stderr.count("starting from the first step") == 1
    folder = job_file.parent / "checkpoints" / "run"
    assert json.loads((folder / "save-4" / "manifest.json").read_text())["world_size"] == 2
    background = ("--set", "trainer.checkpointing.mode=async")
    second = keepstep_forked("train", str(job_file), "--nproc", "2", *background)
    assert second.returncode == 0, second.stderr
    assert second.stderr.count("resumed from step 4") == 1
    assert json.loads((folder / "save-8" / "manifest.json").read_text())["world_size"] == 2
    third = keepstep("train", str(job_file))
    assert third.returncode == 0
    assert third.stderr.count("Training is already complete, nothing to do") == 1
    assert list(jobs.rows(job_file.parent)) == list(range(1, 9))
    for step in (4, 8):
        (folder / f"save-{step}" / "manifest.json").write_text("{}")
    damaged = keepstep_forked("train", str(job_file), "--nproc", "2")
    assert damaged.returncode == 4
    assert damaged.stderr.count("no checkpoint is complete and unchanged") == 1


def under_torchrun(*arguments: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[2]
    script = root / "src" / "keepstep" / "cli" / "worker.py"
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [sys.executable, *torchrun, str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{root}/src:{root}"},
    )


def test_selftest_of_a_job_file(job_file: Path) -> None:
    done = keepstep_forked("selftest", str(job_file), "--stop-at", "2", "--json", cwd=job_file.parent)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["equal"] is True
    assert not (job_file.parent / "runs").exists(), "the job's own folder is left alone"


def test_selftest_of_a_command_names_a_fault(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FAULTY)
    words = ("--stop-at", "2", "--folder", str(tmp_path / "work"), "--", sys.executable, "train.py")
    done = keepstep_forked("selftest", *words, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "differs first at step 3 in rng" in done.stdout
    assert "torch.manual_seed at train.py:8" in done.stdout


def test_selftest_refuses_what_it_cannot_run(job_file: Path) -> None:
    assert keepstep("selftest", str(job_file), "more").returncode == 2
    assert keepstep("selftest", "--nproc", "2", "--", "python", "train.py").returncode == 2
    done = keepstep_forked("selftest", "--", sys.executable, "-c", "print('no checkpointer')")
    assert done.returncode == 1
    assert "made no Checkpointer" in done.stderr


FAULTY = """
import torch, keepstep
torch.manual_seed(3)
model = torch.nn.Linear(2, 2)
config = keepstep.CheckpointingConfig(save_dir="runs", period_steps=5)
with keepstep.Checkpointer(config, keepstep.JobState(model=model), total_steps=6) as checkpointer:
    start = checkpointer.resume()
    torch.manual_seed(0)
    for step in range(start + 1, 7):
        model(torch.rand(2))
        checkpointer.save_if_due(step)
"""
