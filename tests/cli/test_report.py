"""`keepstep report` and `keepstep top` as a person meets them."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from keepstep.cli.main import app
from keepstep.errors import ConfigError, CouldNotLookError
from tests.rig.report_runs import commit, lines, long_run, saved


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return long_run(tmp_path / "long", steps=200, checkpoints=10, attempts=2, ranks=2)


def call(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [*map(str, words)])
    assert result.exit_code == code, result.output
    return result.output


def test_a_page_is_written_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(tmp_path / "small", 1)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.html").symlink_to("report.html")
    for out in ("report.html", "report.html", "link.html", "small/report.html"):
        assert call("report", "small", "-o", out).startswith(f"{out}: ")
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert (tmp_path / "link.html").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.html", "report.html", "small"]


@pytest.mark.parametrize(
    "out",
    [
        "long/saves.jsonl",
        "long/new.jsonl",
        "long/save-20/run.json",
        "long/save-20/new.html",
        "long/.keepstep/new.html",
        "other/save-1/new.html",
        "link",
        "mine.html",
    ],
)
def test_a_page_takes_the_place_of_nothing_else(run: Path, tmp_path: Path, out: str) -> None:
    commit(tmp_path / "other", 1)
    (tmp_path / "mine.html").write_text("<!DOCTYPE html>")
    (tmp_path / "link").symlink_to("long/saves.jsonl")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    result = CliRunner().invoke(app, ["report", str(run), "-o", str(tmp_path / out)])
    assert isinstance(result.exception, ConfigError)
    assert "choose another --out" in str(result.exception)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_pipe_is_written_into(tmp_path: Path) -> None:
    commit(tmp_path / "small", 1)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    reader.start()
    call("report", tmp_path / "small", "-o", tmp_path / "link")
    reader.join()
    assert read[0].rstrip().endswith("</html>")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "pipe").is_fifo()


def test_json(run: Path) -> None:
    found = json.loads(call("report", run, "--json", "--metric", "task/loss", "--guard", "recall>0.5"))
    assert (found["state"], found["step"]) == ("finished", 200)
    same = json.loads(call("best", run, "--json", "--metric", "task/loss", "--mode", "min", "--guard", "recall>0.5"))
    assert found["scores"]["choice"] == {name: same[name] for name in found["scores"]["choice"]}
    assert found["attempts"][0]["redone"] == 20
    assert not list(Path.cwd().glob("report.html"))


def test_a_page_that_cannot_be_written_is_said_first(run: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(run), "-o", str(tmp_path)])
    assert isinstance(result.exception, ConfigError)
    result = CliRunner().invoke(app, ["report", str(run), "-o", str(tmp_path / "no/where.html")])
    assert isinstance(result.exception, ConfigError)


def test_bad_words(run: Path, tmp_path: Path) -> None:
    assert isinstance(CliRunner().invoke(app, ["top", "s3://b/run"]).exception, ConfigError)
    for command in ("report", "top"):
        call(command, run, "--mode", "most", code=2)
        for words in (["--metric", "auc"], ["--guard", "recall"], ["--guard", "auc>1"]):
            assert isinstance(CliRunner().invoke(app, [command, str(run), *words]).exception, ConfigError), words
        result = CliRunner().invoke(app, [command, str(tmp_path / "nowhere")])
        assert isinstance(result.exception, CouldNotLookError)


def test_one_picture_of_a_run(run: Path) -> None:
    text = call("top", run, "--once")
    assert text.startswith("long  finished")
    assert "step 200 of 200" in text
    assert "loss " in text
    assert "task/accuracy" in text
    assert "eligible; guards: canary/recall>0" in " ".join(call("top", run, "--once", "--guard", "recall>0").split())
    assert "nothing is chosen: guard canary/recall>9" in call("top", run, "--once", "--guard", "recall>9")
    assert "s3://bucket/runs/long" in text
    assert "rank" not in text.splitlines()[1]


def test_events_on_a_narrow_terminal(tmp_path: Path) -> None:
    problem = "no space left on device " * 40
    rows = [saved(1, 12), {"step": 12_345, "attempt": 12, "outcome": "failed", "problem": problem}]
    lines(tmp_path / "saves.jsonl", rows)
    row = next(line for line in call("top", tmp_path).splitlines() if "save failed" in line)
    assert row.split()[:5] == ["12", "12,345", "save", "failed", "no"]
    assert len(row) <= 80
    assert row.endswith("…")


def test_a_terminal_gets_no_codes_from_files(tmp_path: Path) -> None:
    evil = "\x1b]0;gone\x07[bold]x[/bold]"
    lines(tmp_path / "saves.jsonl", [saved(1, 1), {"step": 2, "attempt": 1, "outcome": "failed", "problem": evil}])
    text = call("top", tmp_path)
    assert "\x1b" not in text
    assert "[bold]x" in text


def test_top_of_nothing(tmp_path: Path) -> None:
    assert "not begun" in call("top", tmp_path, "--once")


@pytest.mark.parametrize("command", ["report", "top"])
def test_help_has_an_example(command: str) -> None:
    assert f"Example: keepstep {command} runs/checkpoints/stdlib-lm" in call(command, "--help")


def test_ctrl_c_ends_top_and_leaves_the_terminal_as_it_was(run: Path) -> None:
    import pty

    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", "from keepstep.cli.main import main; main()", "top", str(run), "--every", "0.1"]
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        seen = b""
        while seen.count(b"SCORE") < 2:
            seen += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        try:
            while piece := os.read(ours, 65536):
                seen += piece
        except OSError:
            pass  # what a closed terminal answers
        assert process.wait() == 0
    os.close(ours)
    assert seen.rindex(b"\x1b[?1049l") > seen.rindex(b"\x1b[?1049h")
    assert seen.rindex(b"\x1b[?25h") > seen.rindex(b"\x1b[?25l")


def test_neither_needs_torch(run: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from keepstep.ops.report import gather, page, terminal;"
        "from keepstep.plan.report.story import story_of;"
        f"terminal.frame(story_of(gather.gather(Path({str(run)!r}))));"
        "assert 'torch' not in sys.modules and 'vl_convert' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
