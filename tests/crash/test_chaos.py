"""ckpt-chaos against the tiny job: a floor, since it sees Python's own file events only and passes broken savers.

Its exit code alone proves nothing: a point that did not crash, or that met other events than planned, counts as PASS
there. So every point is read from its result file and judged strictly.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FAIL_ON = "HARD_FAIL,SILENT_DIVERGENCE,LOST_WORK,CONTROL_FAIL"


def chaos(work: Path, *, ranks: int = 1, crash_rank: int = 0, modes: str = "before,torn", points: int) -> list[Any]:
    """Run it; returns the results of all crash points. Fails on any that is not a PASS of a crash that happened."""
    command = [sys.executable, "-m", "ckpt_chaos", "run", "--work", str(work / "chaos"), "--modes", modes]
    command += ["--ranks", str(ranks), "--crash-rank", str(crash_rank), "--max-points", str(points)]
    command += ["--step-regex", r"resumed from step (\d+)", "--result-file", "{out}/final.json", "--fail-on", FAIL_ON]
    command += ["--checkpoint-glob", "{out}/checkpoints/tiny/save-*", "--timeout", "120", "--", sys.executable]
    command += [str(ROOT / "tests" / "crash" / "chaos_job.py"), "{out}"]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        # Version 0.1.8 tells the rank where to crash, and the check of whose turn it is looks here.
        "CKPT_CHAOS_CRASH_RANK": str(crash_rank),
    }
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, cwd=work)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    results = [json.loads(file.read_text()) for file in sorted((work / "chaos").glob("pt_*/result.json"))]
    points_run = [result for result in results if "point" in result]
    for result in points_run:
        assert result["crashed"], f"{result['label']} did not crash"
        assert not result["drift"], f"{result['label']} met another event than planned"
        assert not result["outcome"]["raised"], f"{result['label']} failed to resume"
        assert result["outcome"]["weights_diff"] == 0, f"{result['label']} ended in another state"
        newest = result["outcome"]["newest_complete_step"] or 0
        assert (result["outcome"]["resumed_from_step"] or 0) >= newest, f"{result['label']} lost work"
    assert points_run
    return points_run


# The tests hold a short form of it on forked processes: `test_chaos_trainer.py`.
@pytest.mark.crash
@pytest.mark.timeout(600)
def test_some_points_of_one_process(tmp_path: Path) -> None:
    chaos(tmp_path, points=3)


@pytest.mark.crash
@pytest.mark.timeout(3600)
def test_all_points_of_one_process(tmp_path: Path) -> None:
    results = chaos(tmp_path, points=10_000)
    assert max(result["outcome"]["newest_complete_step"] or 0 for result in results) == 6


@pytest.mark.crash
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rank", [0, 1])
def test_all_points_of_each_of_two_ranks(tmp_path: Path, rank: int) -> None:
    chaos(tmp_path, ranks=2, crash_rank=rank, points=10_000)
