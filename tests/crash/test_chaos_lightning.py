"""ckpt-chaos against its own Lightning job, which knows nothing of keepstep: `sitecustomize` calls `enable()`.

Every point is read from its result file and judged strictly, as in test_chaos.py.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning", reason="Lightning is not installed: pip install keepstep[lightning]")

from tests.rig import forks
from tests.rig.chaos import bench, judge


def chaos(work: Path, ranks: int) -> int:
    """Run it; returns the number of crash points. Fails on any that is not a PASS of a crash that happened."""
    points = bench(work, "lightning_trainer", "keepstep.integrations.lightning", ranks)
    judge(points)
    assert {one["outcome"]["resumed_from_step"] for one in points} == {5, 10}
    # What has been saved by keepstep leaves its record, so it was there.
    assert (work / "chaos" / "dry" / "out" / "checkpoints" / ".keepstep" / "files").is_dir()
    return len(points)


def test_every_third_point_on_forked_processes(tmp_path: Path) -> None:
    """The same job and the same injector, without the start of Python and the import of Lightning for each run."""
    from ckpt_chaos.targets import lightning_trainer as target

    def run(phase: str, out: Path, **injector: str) -> forks.Ended:
        def work() -> None:
            from keepstep.integrations.lightning import enable

            enable()
            os.environ.update(injector)
            sys.argv = ["target", phase, "--out", str(out)]
            target.main()

        (ended,) = forks.run(work)
        return ended

    def watch(place: Path, **more: str) -> dict[str, str]:
        place.mkdir()
        return {"CKPT_CHAOS_WATCH": str(place / "out"), "CKPT_CHAOS_LOG": str(place / "events"), **more}

    def final(out: Path) -> Any:
        import torch

        return torch.load(out / "final_rank0.pt", weights_only=True)

    assert run("reference", tmp_path / "reference").status == 0
    assert run("train", tmp_path / "dry" / "out", **watch(tmp_path / "dry")).status == 0
    plan = (tmp_path / "dry" / "events.rank0").read_text().splitlines()
    assert len(plan) >= 8
    steps = []
    for number in range(1, len(plan) + 1, 3):
        place = tmp_path / str(number)
        ended = run("train", place / "out", **watch(place, CKPT_CHAOS_CRASH_AT=str(number)))
        assert ended.status == 137, f"{plan[number - 1]} did not crash"
        assert (place / "events.rank0").read_text().splitlines() == plan[:number]
        newest = 10 if (place / "out" / "checkpoints" / "ck-step=10.ckpt").exists() else 5
        assert run("resume", place / "out").status == 0
        steps.append(json.loads((place / "out" / "outcome_rank0.json").read_text())["resumed_from_step"])
        assert steps[-1] == newest
        ours, reference = final(place / "out"), final(tmp_path / "reference")
        assert all(bool((ours[name] == reference[name]).all()) for name in reference)
    assert set(steps) == {5, 10}


@pytest.mark.crash
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("ranks", [1, 2])
def test_all_points(tmp_path: Path, ranks: int) -> None:
    assert chaos(tmp_path, ranks) >= 8
