"""ckpt-chaos against its own job with the Trainer of Hugging Face, which knows nothing of keepstep."""

from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="transformers is not installed: pip install keepstep[hf]")

from tests.rig.chaos import bench, judge

# Python's own file events of one save, most of them twice: before, and torn.
LEAST = 23


@pytest.mark.crash
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("ranks", [1, 2])
def test_all_points(tmp_path: Path, ranks: int) -> None:
    points = bench(tmp_path, "hf_trainer", "keepstep.integrations.hugging_face", ranks)
    judge(points)
    # What keepstep has saved has its manifest, so it was there.
    assert (tmp_path / "chaos" / "dry" / "out" / "checkpoint-10" / "manifest.json").is_file()
    assert len(points) >= LEAST
