"""ckpt-chaos against its own job with the Trainer of Hugging Face, which knows nothing of keepstep."""

from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="transformers is not installed: pip install keepstep[hf]")

from tests.rig import trainer_jobs
from tests.rig.chaos import bench, forked_bench, judge

# File events of one save as the tool sees them: before each, and torn where native code writes.
LEAST = 23


def _begin() -> None:
    from keepstep.integrations.hugging_face import enable

    trainer_jobs.reset()
    enable()


@pytest.mark.parametrize(("ranks", "every"), [(1, 14), (2, 25)])
def test_some_points_on_forked_processes(tmp_path: Path, ranks: int, every: int) -> None:
    judge(forked_bench(tmp_path, "hf_trainer", ranks, _begin, every))


@pytest.mark.crash
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("ranks", [1, 2])
def test_all_points_on_forked_processes(tmp_path: Path, ranks: int) -> None:
    points = forked_bench(tmp_path, "hf_trainer", ranks, _begin)
    judge(points)
    assert {one["outcome"]["resumed_from_step"] for one in points} == {5, 10}
    assert len(points) >= LEAST


@pytest.mark.crash
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("ranks", [1, 2])
def test_all_points(tmp_path: Path, ranks: int) -> None:
    points = bench(tmp_path, "hf_trainer", "keepstep.integrations.hugging_face", ranks)
    judge(points)
    assert {one["outcome"]["resumed_from_step"] for one in points} == {5, 10}
    # What keepstep has saved has its manifest, so it was there.
    assert (tmp_path / "chaos" / "dry" / "out" / "checkpoint-10" / "manifest.json").is_file()
    assert len(points) >= LEAST
