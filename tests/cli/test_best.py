"""`keepstep best`, and `keepstep prune` with more rules than a number."""

import json
import math
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.rig.command import keepstep
from tests.rig.folders import make_checkpoint
from tests.rig.scores import give_score


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody changes."""
    run = tmp_path_factory.mktemp("best") / "run"
    for step, accuracy, canary in ((10, 0.5, 0.95), (20, 0.93, 0.7), (30, 0.8, 0.9), (40, math.nan, 0.9)):
        _scored(run, step, accuracy, canary)
    make_checkpoint(run, 50)
    return run


@pytest.fixture
def run(seed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(seed, tmp_path / "run"))


def test_a_table_says_why_and_its_last_line_is_the_path(run: Path) -> None:
    words = ("best", str(run), "--metric", "task/accuracy", "--mode", "max", "--guard", "canary/accuracy>=0.9")
    done = keepstep(*words)
    assert done.returncode == 0
    table = done.stdout.splitlines()
    assert table[0].split() == ["STEP", "task/accuracy", "canary/accuracy", "STATE", "WHY"]
    assert [line.split()[:4] for line in table[1:-1]] == [
        ["10", "0.5", "0.95", "eligible"],
        ["20", "0.93", "0.7", "left"],
        ["30", "0.8", "0.9", "chosen"],
        ["40", "NaN", "0.9", "left"],
        ["50", "-", "-", "left"],
    ]
    assert table[-1] == str(run / "save-30")
    assert keepstep(*words, "--path", "--pin").stdout == f"{run / 'save-30'}\n"
    assert "best by task/accuracy = 0.8" in keepstep("ls", str(run)).stdout


def test_json_is_strict(seed: Path) -> None:
    done = keepstep("best", str(seed), "--metric", "task/accuracy", "--mode", "max", "--json")
    found = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert (found["chosen"], found["path"]) == (20, str(seed / "save-20"))
    assert found["rows"][3]["values"] == {"task/accuracy": "NaN"}


def test_nothing_to_choose_is_1_and_says_why(seed: Path) -> None:
    done = keepstep("best", str(seed), "--metric", "task/accuracy", "--mode", "max", "--guard", "canary/accuracy>2")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "guard canary/accuracy>2: it is 0.95 (step 10)" in done.stderr
    assert "not scored yet (step 50)" in done.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "there are: canary/accuracy (of 4 checkpoints), task/accuracy (of 4 checkpoints)"),
        (["--metric", "task/accuracy"], "--mode: say whether"),
        (["--metric", "accuracy", "--mode", "max"], "accuracy may be any of canary/accuracy, task/accuracy"),
        (["--metric", "task/accuracy", "--mode", "max", "--guard", "x"], "guard 'x': must be"),
        (["--metric", "task/accuracy", "--mode", "max", "--path", "--json"], "do not go together"),
    ],
)
def test_wrong_usage_is_2(seed: Path, words: list[str], text: str) -> None:
    done = keepstep("best", str(seed), *words)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert text in done.stderr


def test_a_mirror_is_not_pinned() -> None:
    words = ("--metric", "task/accuracy", "--mode", "max", "--pin")
    assert "is a mirror" in keepstep("best", "s3://bucket/run", *words).stderr


def test_prune_with_several_rules(run: Path) -> None:
    words = ["prune", str(run), "--keep-every", "40", "--keep-best", "1", "--metric", "task/accuracy", "--mode", "max"]
    dry = keepstep(*words, "--dry-run")
    assert [line.split()[0] for line in dry.stdout.splitlines() if "would delete" in line] == ["save-10", "save-30"]
    assert "the best, task/accuracy = 0.93" in dry.stdout
    assert len(os.listdir(run)) == 7
    guarded = keepstep(*words, "--guard", "canary/accuracy>=0.9", "--dry-run").stdout
    assert "the best, task/accuracy = 0.8" in guarded
    wet = json.loads(keepstep(*words, "--disk-budget", "90kB", "--json").stdout)
    assert [one["keep"] for one in wet["verdicts"]] == [False, True, False, False, True]
    assert wet["freed"] == sum(one["size"] for one in wet["verdicts"] if not one["keep"])
    assert wet["over_budget"] == 0
    assert "beyond the disk budget" in wet["verdicts"][3]["reason"]
    assert {"save-20", "save-50"} == {name for name in os.listdir(run) if name.startswith("save-")}


def test_prune_by_age_and_by_budget_alone(seed: Path) -> None:
    old = keepstep("prune", str(seed), "--keep-younger", "7d", "--dry-run").stdout
    assert old.count("168 hours old or older") == 4
    small = keepstep("prune", str(seed), "--disk-budget", "1kB", "--dry-run").stdout
    assert small.count("would delete") == 4
    assert "what must stay is 39.3 kB more than the disk budget" in small


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["RUN"], "say what stays: --keep N"),
        (["RUN", "--keep-best", "1"], "--keep-best needs --metric NAME and --mode"),
        (["RUN", "--keep", "1", "--mode", "max"], "belong to --keep-best"),
        (["RUN", "--keep-best", "1", "--metric", "task/acc", "--mode", "max"], "no checkpoint has a metric task/acc"),
        (["RUN", "--keep", "1", "--guard", "a>1"], "belong to --keep-best"),
        (["RUN", "--keep-younger", "24"], "is no duration; write 90min, 24h or 7d"),
        (["RUN", "--keep-younger", "0h"], "is no duration"),
        (["RUN", "--disk-budget", "much"], "--disk-budget: 'much' is no size"),
        (["s3://bucket/run", "--keep", "1", "--keep-every", "10"], "--keep-every is for folders"),
        (["s3://bucket/run"], "--keep: say how many"),
    ],
)
def test_what_prune_cannot_mean_is_said_in_one_line(seed: Path, words: list[str], text: str) -> None:
    done = keepstep("prune", *(str(seed) if word == "RUN" else word for word in words))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert text in done.stderr


def test_the_docs_show_what_the_commands_print(tmp_path: Path) -> None:
    for step, values in {1000: (0.71, 0.95), 1500: (0.84, 0.93), 2000: (0.91, 0.88), 2500: (0.9, 0.92)}.items():
        _scored(tmp_path / "runs/exp-1", step, *values)
    _scored(tmp_path / "runs/exp-1", 3000, 0.9, 0.9)
    make_checkpoint(tmp_path / "runs/exp-1", 3500)
    text = (Path(__file__).parents[2] / "docs/choosing.md").read_text()
    blocks = re.findall(r"^```\n\$ keepstep ([^\n]*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert [words.split()[0] for words, _ in blocks] == ["best", "prune"]
    for words, output in blocks:
        assert keepstep(*shlex.split(words), cwd=tmp_path).stdout == output


def _scored(run: Path, step: int, accuracy: float, canary: float) -> None:
    checkpoint = make_checkpoint(run, step)
    give_score(checkpoint, accuracy=accuracy)
    give_score(checkpoint, set="canary", accuracy=canary)
