"""Scorers of all kinds."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from keepstep.ops.scoring.runner import Bounds, Result, call_function, run_scorer
from keepstep.plan.score_command import ScoreCommand, parse_commands

BOUNDS = Bounds(threads=3, nice=7)
PLAIN = f"{sys.executable} -S"


def score(tmp_path: Path, code: str, bounds: Bounds = BOUNDS, parts: str = "{checkpoint}") -> Result:
    script = tmp_path / "score.py"
    script.write_text(code)
    (command,) = parse_commands(f"{PLAIN} {script} {parts}", {})
    return run_scorer(command, tmp_path / "save-7", 7, bounds, tmp_path / "log")


def test_the_last_line_of_json_counts_and_the_command_is_kept_without_the_path(tmp_path: Path) -> None:
    code = (
        'import sys; print(\'{"a": 1}\'); print(\'{"a": 2, "path": "x"}\'); print(\'done\'); '
        "print('!', file=sys.stderr)"
    )
    result = score(tmp_path, code)
    assert (result.metrics, result.problem) == ({"a": 2.0}, "")
    assert result.command[-1] == "{checkpoint}"
    assert str(tmp_path / "save-7") not in result.command
    assert result.seconds > 0
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize(
    "content", ['{\\n "a": {\\n "b": 2\\n }\\n}\\n', '{\\"a/b\\": 1}\\n{\\"a/b\\": 2}\\n', '{\\"a/b\\": 2}']
)
def test_metrics_from_a_file(tmp_path: Path, content: str) -> None:
    code = f"import sys; print('{{\"no\": 1}}'); open(sys.argv[2], 'w').write('{content}')"
    result = score(tmp_path, code, parts="{checkpoint} {output}")
    assert (result.metrics, result.problem) == ({"a/b": 2.0}, "")
    assert result.command[-1] == "{output}"


def test_it_is_bounded_and_has_no_session_of_its_own(tmp_path: Path) -> None:
    code = (
        "import os, json; print(json.dumps({'nice': os.nice(0), 'threads': int(os.environ['OMP_NUM_THREADS']), "
        "'session': os.getsid(0), 'group': os.getpgid(0), 'pid': os.getpid()}))"
    )
    metrics = score(tmp_path, code).metrics
    assert metrics["nice"] == min(19, os.nice(0) + 7)
    assert metrics["threads"] == 3
    assert metrics["session"] == os.getsid(0)
    assert metrics["group"] == metrics["pid"]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("raise ValueError('no data')", "exit code 1: ValueError: no data"),
        ("import sys; print('{\"a\": 1}'); sys.exit(3)", "exit code 3"),
        ("print(0.93)", "no metrics"),
        ('print(\'{"a": 1, "a": 2}\')', "two of its metrics are called a"),
        ("import os; print('{\"a\": 1}', flush=True); os.kill(os.getpid(), 9)", "ended by SIGKILL"),
    ],
)
def test_a_failure_is_told_and_its_output_kept(tmp_path: Path, code: str, told: str) -> None:
    result = score(tmp_path, code)
    assert told in result.problem
    assert result.metrics == {}
    assert str(tmp_path / "log") in result.problem
    assert (tmp_path / "log").exists()


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    result = run_scorer(
        ScoreCommand("task", ("no-such-program", "{checkpoint}")), tmp_path, 1, BOUNDS, tmp_path / "log"
    )
    assert "no-such-program: there is no such program" in result.problem


def test_one_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time; child = subprocess.Popen(['sleep', '60']);"
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid)); time.sleep(60)"
    )
    started = time.monotonic()
    result = score(tmp_path, code, Bounds(1, 0, seconds=0.7))
    assert "ended after 0.7 seconds" in result.problem
    assert time.monotonic() - started < 30
    assert ends(int((tmp_path / "child").read_text()))


@pytest.mark.parametrize("apart", [False, True])
def test_it_and_its_children_do_not_outlive_who_asked_for_it(tmp_path: Path, apart: bool) -> None:
    note = tmp_path / "pid"
    (tmp_path / "score.py").write_text(
        f"import os, subprocess, time; child = subprocess.Popen(['sleep', '60'], start_new_session={apart}); "
        f"open({str(note)!r} + '.new', 'w').write(f'{{os.getpid()}} {{child.pid}}'); "
        f"os.rename({str(note)!r} + '.new', {str(note)!r}); time.sleep(60)"
    )
    code = (
        "import sys; from pathlib import Path; from keepstep.ops.scoring.runner import *; "
        "from keepstep.plan.score_command import parse_commands; at = Path(sys.argv[1]); "
        f"command = parse_commands('{PLAIN} ' + str(at / 'score.py') + ' {{checkpoint}}', {{}})[0]; "
        "run_scorer(command, at, 1, Bounds(), at / 'log')"
    )
    watcher = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    until = time.monotonic() + 60
    while not note.exists() and time.monotonic() < until:
        time.sleep(0.02)
    watcher.send_signal(signal.SIGKILL)
    watcher.wait()
    assert all(ends(int(pid)) for pid in note.read_text().split())


def ends(pid: int) -> bool:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state in "ZX":
            return True
        time.sleep(0.02)
    return False


def test_a_function_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "judging.py").write_text(
        "class Judge:\n"
        "    @staticmethod\n"
        "    def score(path, data=None):\n"
        "        print('{\"not\": 1}')\n"
        "        return {'step': int(path.name.split('-')[1]), 'n': len(data or '')}\n"
    )
    monkeypatch.chdir(tmp_path)
    (command,) = parse_commands("judging:Judge.score", {"canary": "four"})
    result = run_scorer(command, tmp_path / "save-7", 7, BOUNDS, tmp_path / "log")
    assert (result.metrics, result.problem) == ({"step": 7.0, "n": 4.0}, "")


def test_a_function_in_this_process(tmp_path: Path) -> None:
    def function(path: Path, data: str) -> dict[str, float]:
        if path.name == "bad":
            raise RuntimeError("no luck")
        return {"n": len(data)}

    command = ScoreCommand("task", data="four")
    assert call_function(function, command, tmp_path).metrics == {"n": 4.0}
    assert call_function(function, command, tmp_path / "bad").problem == "RuntimeError: no luck"
    assert "no number" in call_function(lambda path: {}, ScoreCommand("task"), tmp_path).problem
    assert "NoneType" in call_function(lambda path: None, ScoreCommand("task"), tmp_path).problem  # type: ignore[arg-type, return-value]
