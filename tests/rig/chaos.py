"""ckpt-chaos against its own jobs, which know nothing of keepstep: `sitecustomize` calls `enable()`.

Its exit code alone proves nothing: a point that did not crash, or that met other events than planned, counts as PASS
there. So every point is read from its result file and judged strictly.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def bench(work: Path, target: str, integration: str, ranks: int) -> list[dict[str, Any]]:
    """Run it; returns what each crash point came to. Fails where the run without a crash did not resume from its end.

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
    results = [json.loads(file.read_text()) for file in sorted((work / "chaos").glob("pt_*/result.json"))]
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
    assert {one["outcome"]["resumed_from_step"] for one in points} == {5, 10}
