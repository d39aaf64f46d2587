"""Commands on addresses, as a person meets them: output, exit codes, one-line errors."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.rig.command import keepstep
from tests.rig.folders import make_checkpoint
from tests.rig.web_server import WebManners, web_server


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in (5, 10, 15):
        make_checkpoint(tmp_path / "run", step)
    return tmp_path / "run"


@pytest.fixture
def mirror(tmp_path: Path) -> str:
    return f"file://{tmp_path}/mirror"


def test_there_and_back(run: Path, mirror: str, tmp_path: Path) -> None:
    pushed = keepstep("push", str(run), mirror, "--step", "5", "--step", "15")
    assert pushed.returncode == 0, pushed.stderr
    assert pushed.stdout.splitlines()[0] == f"{mirror}/run/save-15: copied, 40.3 kB"
    facts = json.loads(keepstep("push", str(run), mirror, "--json").stdout)
    assert [(one["step"], one["is_new"]) for one in facts["pushed"]] == [(15, False), (10, True), (5, False)]

    back = tmp_path / "back"
    pulled = keepstep("pull", f"{mirror}/run", str(back))
    assert pulled.returncode == 0, pulled.stderr
    assert pulled.stdout == f"{back}/save-15: copied, 40.3 kB\n"
    facts = json.loads(keepstep("pull", f"{mirror}/run", str(back), "--all", "--json").stdout)
    assert [(one["step"], one["is_new"]) for one in facts["pulled"]] == [(15, False), (10, True), (5, True)]
    assert keepstep("diff", f"{mirror}/run/save-10", str(back / "save-10"), "--exit-code").returncode == 0


def test_a_mounted_folder_is_read_like_a_folder(run: Path) -> None:
    for words in (["ls"], ["verify"], ["ls", "--tree"]):
        assert keepstep(*words, f"file://{run}") == keepstep(*words, str(run))
    assert keepstep("show", f"file://{run}/save-5") == keepstep("show", str(run / "save-5"))


def test_a_web_server(run: Path) -> None:
    with web_server(run.parent, WebManners()) as address:
        checkpoint = f"{address}/run/save-5?token=secret"
        shown = keepstep("show", checkpoint)
        assert shown.returncode == 0, shown.stderr
        assert "model.first" in shown.stdout
        assert keepstep("verify", checkpoint).stdout == f"{address}/run/save-5: complete, 40.3 kB read\n"
        assert keepstep("diff", checkpoint, str(run / "save-5"), "--exit-code").returncode == 0
        (run / "save-5" / "__0_0.distcp").write_bytes(bytes(40_000))
        damaged = keepstep("verify", checkpoint)
        assert damaged.returncode == 1
        assert "__0_0.distcp: its content has changed" in damaged.stdout
        broken = keepstep("pull", checkpoint, str(run.parent / "back"))
        assert (broken.returncode, broken.stderr.count("\n")) == (4, 1)
        listed = keepstep("ls", f"{address}/run?token=secret")
        assert (listed.returncode, listed.stderr.count("\n")) == (1, 1)
        assert "cannot be listed" in listed.stderr
        for done in (shown, damaged, broken, listed):
            assert "secret" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["push", "RUN", "https://host/x"], "can only be read"),
        (["prune", "https://host/x", "--keep", "1"], "can only be read"),
        (["push", "RUN", "elsewhere"], "no address"),
        (["push", "s3://bucket/x", "s3://bucket/y"], "keepstep pull"),
        (["push", "RUN", "file:///x", "--as", "a", "--no-name"], "--no-name"),
        (["pull", "elsewhere", "RUN"], "no address"),
        (["pull", "s3://bucket/x", "s3://bucket/y"], "folder of this machine"),
        (["pull", "file:///x", "RUN", "--all", "--step", "1"], "do not go together"),
        (["ls", "--tree", "s3://bucket/x"], "leave --tree out"),
        (["ls", "ftp://host/x"], "addresses of this kind are not known"),
        (["show", "s3://key:word@bucket/x"], "must not hold a key"),
        (["prune", "RUN", "--keep", "1", "--incomplete"], "--incomplete is for mirrors"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(run: Path, words: list[str], text: str) -> None:
    done = keepstep(*(str(run) if word == "RUN" else word for word in words))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert text in done.stderr
    assert "word@" not in done.stderr


def test_prune(run: Path, mirror: str, tmp_path: Path) -> None:
    keepstep("push", str(run), mirror)
    folder = tmp_path / "mirror" / "run"
    (folder / "save-1").mkdir()
    (folder / "save-1" / "part").write_text("part")
    dry = keepstep("prune", f"{mirror}/run", "--keep", "1", "--dry-run", "--verify")
    assert dry.stdout.count("would delete  older") == 2
    assert "left alone save-1 (4 B)" in dry.stdout
    assert "not an hour old" in dry.stdout
    os.utime(folder / "save-1" / "part", (0, 0))
    assert "--incomplete deletes it" in keepstep("prune", f"{mirror}/run", "--keep", "1", "--dry-run").stdout
    assert len(os.listdir(folder)) == 4
    wet = keepstep("prune", f"{mirror}/run", "--keep", "1", "--incomplete", "--json")
    assert [v["keep"] for v in json.loads(wet.stdout)["verdicts"]] == [False, False, True]
    assert os.listdir(folder) == ["save-15"]


def test_a_bucket(run: Path, s3: str) -> None:
    address = f"{s3}/commands"
    assert keepstep("ls", f"{address}/run").stdout == f"no checkpoints in {address}/run\n"
    assert keepstep("push", str(run), address).returncode == 0
    rows = keepstep("ls", f"{address}/run").stdout.splitlines()[1:]
    assert [row.split()[:2] for row in rows] == [[step, "complete"] for step in ("5", "10", "15")]
    assert "runs with checkpoints: run" in keepstep("ls", address).stdout
    assert keepstep("verify", f"{address}/run").returncode == 0
    assert keepstep("prune", f"{address}/run", "--keep", "1").returncode == 0
    facts = json.loads(keepstep("ls", f"{address}/run", "--json").stdout)
    assert [one["path"] for one in facts["checkpoints"]] == [f"{address}/run/save-15"]


def test_a_store_that_does_not_answer_is_an_error(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")
    done = keepstep("ls", f"{s3}/x")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "cannot look for checkpoints" in done.stderr
    assert "another-secret" not in done.stderr


def test_a_path_does_not_wait_for_what_addresses_need(run: Path) -> None:
    import subprocess

    code = (
        "import sys; from keepstep.cli.main import app; app(sys.argv[1:], standalone_mode=False); "
        "assert not {'keepstep.config', 'obstore', 'urllib.request'} & sys.modules.keys(), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code, "ls", str(run)], check=True, timeout=60)
