"""ckpt-chaos against its own jobs, which know nothing of keepstep: `sitecustomize` calls `enable()`.

Its exit code alone proves nothing: a point that did not crash, or that met other events than planned, counts as PASS
there. So every point is read from its result file and judged strictly.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def bench(work: Path, target: str, integration: str, ranks: int) -> list[dict[str, Any]]:
    """Run it; returns what each crash point came to.

    Args:
        work: where to work; `chaos` there is the tool's own folder.
        target: its job.
        integration: the module of keepstep whose `enable` is called.
        ranks: processes of the job.
    """
    site = work / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        f"import sys\nsys.path.insert(1, {str(ROOT / 'src')!r})\nfrom {integration} import enable\nenable()\n"
    )
    command = [sys.executable, "-m", "ckpt_chaos", "bench", target]
    command += ["--ranks", str(ranks), "--jobs", "2" if ranks == 1 else "1", "--work", str(work / "chaos")]
    environment = {**os.environ, "CKPT_CHAOS_PREPEND_PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, cwd=work)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    return read(work / "chaos")


def read(folder: Path) -> list[dict[str, Any]]:
    """The results in the tool's folder. Fails where the run without a crash did not resume from its end."""
    results = [json.loads(file.read_text()) for file in sorted(folder.glob("pt_*/result.json"))]
    control = [result for result in results if result["label"].startswith("no crash")]
    assert [(one["rc"], one["outcome"]["resumed_from_step"]) for one in control] == [(0, 10)]
    return [result for result in results if result not in control]


def judge(points: list[dict[str, Any]]) -> None:
    """Fails on any that is not a crash that happened as planned, after which nothing was lost."""
    for result in points:
        outcome, label = result["outcome"], result["label"]
        assert result["crashed"], f"{label} did not crash"
        assert not result["drift"], f"{label} met another event than planned"
        assert not outcome["raised"], f"{label} failed to resume: {outcome['raised']}"
        assert outcome["weights_diff"] == 0, f"{label} ended in another state"
        assert outcome["ranks_agree"], f"{label}: the ranks differ"
        assert outcome["resumed_from_step"] >= outcome["newest_complete_step"] >= 5, f"{label} lost work"


class _InTurn:
    """Stands for the tool's pool of threads: one forks from a process that has no others."""

    def __init__(self, jobs: int) -> None:
        del jobs

    def __enter__(self) -> "_InTurn":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def map(self, work: Callable[[Any], Any], values: Iterable[Any]) -> list[Any]:
        return [work(value) for value in values]


def forked_bench(
    work: Path, target: str, ranks: int, begin: Callable[[], None], every: int = 1
) -> list[dict[str, Any]]:
    """The same job, injector and rules, without the start of Python and the imports for each run.

    Args:
        work: where to work.
        target: its job, whose libraries are imported already.
        ranks: processes of the job.
        begin: called in each process before the job.
        every: only each so many points.
    """
    from ckpt_chaos import runner

    module: Any = importlib.import_module(runner.TARGETS[target])

    def launch(name: str, phase: str, out: Path, extra: Any = None, ranks: int = 1, timeout: int = 120) -> int:
        out.parent.mkdir(parents=True, exist_ok=True)
        port, left, first = runner._free_port(), dict[int, int](), 0
        for rank in range(ranks):
            environment = dict(extra or {})
            if ranks > 1:
                environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
                environment |= {"LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            log = out.parent / f"{phase}_rank{rank}.log"
            left[_forked(module, ["target", phase, "--out", str(out)], environment, begin, log)] = rank
        deadline = time.monotonic() + timeout
        while left:
            for pid in list(left):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    del left[pid]
                    if status and not first:
                        first = os.waitstatus_to_exitcode(status)
                        deadline = min(deadline, time.monotonic() + runner.PEER_GRACE_S)
            if time.monotonic() > deadline:
                for pid in left:
                    os.kill(pid, signal.SIGKILL)
                deadline = float("inf")
            time.sleep(0.01)
        return first

    run_point = runner._run_point

    def run_some(settings: Any, order: int, point: Any) -> Any:
        return run_point(settings, order, point) if order % every == 0 else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "_launch", launch)
        patch.setattr(runner, "_run_point", run_some)
        patch.setattr(runner, "ThreadPoolExecutor", _InTurn)
        rows = runner.run_matrix(work, 1, ranks, target)
    runner.print_table(rows)
    return read(work)


def _forked(module: Any, words: list[str], environment: Any, begin: Callable[[], None], log: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    code: Any = 1
    try:
        os.environ.update(environment)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - for the whole process
        sys.argv = words
        module.RANK = int(os.environ.get("RANK", "0"))  # it looked when it was imported
        begin()
        module.main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:  # noqa: BLE001 - it is in the log, and in the exit code
        traceback.print_exc()
    os._exit(code)
