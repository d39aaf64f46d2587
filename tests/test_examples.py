"""The examples run as they are, and a kill changes nothing. (The language model's kills: tests/crash/test_kills.py)"""

import contextlib
import io
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.rig import forks

EXAMPLES = Path(__file__).parents[1] / "examples"
OWN_LOOP = EXAMPLES / "own_loop" / "train.py"


def own_loop(folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent / "src")}
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, str(OWN_LOOP)],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment,
        check=True,
        timeout=60,
    )
    return done.stdout


def test_the_hand_written_loop_killed_and_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = own_loop(tmp_path / "a")
    assert "sum of all weights after step 1000" in whole
    folder = tmp_path / "b"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (killed,) = forks.start(lambda: runpy.run_path(str(OWN_LOOP), run_name="__main__"))
    killed.go()
    run = folder / "runs" / "own_loop" / "digits"
    deadline = time.monotonic() + 60
    while not (run / "save-300").is_dir():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    killed.kill()
    assert killed.wait().killed

    def again() -> str:
        with contextlib.redirect_stdout(io.StringIO()) as told:
            runpy.run_path(str(OWN_LOOP), run_name="__main__")
        return told.getvalue()

    assert forks.values(again) == [whole]


def test_the_language_model_beats_counting_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference figures of the example, from its own code; the model itself takes minutes (`make run`)."""
    monkeypatch.setattr(sys, "path", [str(EXAMPLES / "stdlib_lm"), *sys.path])
    import corpus
    import ngram

    train, held_out = corpus.text(held_out=False), corpus.text(held_out=True)
    assert len(train) > 20 * len(held_out) > 0
    assert not {str(p) for p in corpus.source_files(held_out=True)} & {
        str(p) for p in corpus.source_files(held_out=False)
    }
    bigram, trigram = ngram.bigram_bits(train, held_out), ngram.trigram_bits(train, held_out)
    assert 3 < bigram < 4
    assert 2 < trigram < bigram
    even = np.arange(256, dtype=np.uint8).repeat(4)
    assert ngram.bigram_bits(even, even) < 8


def test_the_inference_job_of_the_language_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from keepstep.config import load_job
    from keepstep.job.inference import InferenceJob
    from keepstep.job.train import TrainingJob

    monkeypatch.setattr(sys, "path", [str(EXAMPLES / "stdlib_lm"), *sys.path])
    monkeypatch.chdir(tmp_path)
    train = [
        "providers.model=gpt:build_small",
        "providers.dataset=corpus:windows_small",
        "trainer.total_steps=5",
        "trainer.batching.microbatch_size=32",
    ]
    infer = ["providers.model=gpt:build_small", "providers.task=tasks:bits_per_byte_small"]
    forks.values(lambda: TrainingJob(load_job(EXAMPLES / "stdlib_lm" / "train.yaml", train)).run())
    forks.values(lambda: InferenceJob(load_job(EXAMPLES / "stdlib_lm" / "infer.yaml", infer)).run())
    rows = [json.loads(line) for line in (tmp_path / "runs" / "bits_per_byte.jsonl").read_text().splitlines()]
    import corpus

    assert [row["file"] for row in rows] == [corpus.Files()[i][0] for i in range(len(corpus.Files()))]
    assert all(0 < row["bits_per_byte"] < 9 for row in rows)


def test_the_fine_tuning_killed_in_a_save_and_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(EXAMPLES / "sft"), *sys.path])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import base
    import pairs
    import train
    from transformers import Trainer

    found, texts = pairs.pairs(), pairs.sources()
    assert len(found) > 1000
    monkeypatch.setattr(train, "pairs", lambda: found[:100])
    monkeypatch.setattr(base, "pairs", lambda: found[:100])
    monkeypatch.setattr(base, "sources", lambda: texts[:20])
    forks.values(lambda: base.make_base(tmp_path / "base", steps=2))

    def start(name: str, killed_at: int | None = None) -> None:
        save = Trainer._save_optimizer_and_scheduler

        def dies(self: Trainer, folder: str) -> None:
            save(self, folder)
            if self.state.global_step == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)

        Trainer._save_optimizer_and_scheduler = dies
        steps = ["--base", str(tmp_path / "base"), "--steps", "6", "--save-steps", "2"]
        sys.argv = ["train.py", str(tmp_path / name), *steps]
        train.main()

    assert forks.run(lambda: start("killed", 4))[0].killed
    assert [path.name for path in (tmp_path / "killed").glob("checkpoint-*")] == ["checkpoint-2"]
    forks.values(lambda: start("killed"))
    forks.values(lambda: start("whole"))

    def told(name: str) -> list[float]:
        state = json.loads((tmp_path / name / "checkpoint-6" / "trainer_state.json").read_text())
        return [row["loss"] for row in state["log_history"] if "loss" in row]

    assert told("killed") == told("whole")
    assert len(told("whole")) == 6
    for file in ("adapter_model.safetensors", "tokenizer.json"):
        assert (tmp_path / "killed/adapter" / file).read_bytes() == (tmp_path / "whole/adapter" / file).read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_driver_of_the_fine_tuning(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "sft" / "demo.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed (SIGKILL)" in done.stdout
    assert "resumed from step 20" in done.stdout
    assert "50 of 50 losses are the same, bit for bit; the adapters are the same, byte for byte" in done.stdout
    losses = [float(line.split()[1]) for line in done.stdout.splitlines() if len(line.split()) == 3 and "." in line]
    assert losses[-1] < losses[0] - 0.5
