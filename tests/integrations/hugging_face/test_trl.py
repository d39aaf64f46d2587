"""TRL: trainers that were killed and resumed are twins, token counts and moving reference models included."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from keepstep.plan.manifest import from_text
from keepstep.storage.digest import digest_of_bytes
from tests.rig.trainers import assert_twins, run
from tests.rig.trl_trainers import dpo, grpo, llama, sft

CASES: dict[str, Any] = {
    "sft lora": sft,
    "sft lora packed": partial(sft, packing=True, logging_steps=2),
    "dpo with a reference that moves": partial(dpo, sync_ref_model=True, ref_model_sync_steps=2),
    "grpo that reuses completions": partial(grpo, num_iterations=2),
}
MORE: dict[str, Any] = {
    **CASES,
    "sft full": partial(sft, lora=False),
    "sft of an iterable": partial(sft, lora=True, dataloader_num_workers=1),
    "dpo": dpo,
    "grpo": grpo,
    "grpo of two generations": partial(grpo, num_iterations=2, steps_per_generation=4),
    "grpo with a reference that moves": partial(grpo, beta=0.1, sync_ref_model=True, ref_model_sync_steps=2),
    "grpo in its second epoch": partial(grpo, max_steps=24),
}


def _check(build: Any, tmp_path: Path, stops: Any) -> None:
    whole = run(build, tmp_path / "whole")
    for stop in stops:
        run(build, tmp_path / str(stop), stop=stop)
        resumed = run(build, tmp_path / str(stop), resume=True)
        assert_twins(whole, resumed, (stop - 1) // 3 * 3)


@pytest.mark.parametrize("name", CASES)
def test_twins(name: str, tmp_path: Path) -> None:
    _check(CASES[name], tmp_path, [8])


@pytest.mark.trainers
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", MORE)
def test_ten_stops(name: str, tmp_path: Path) -> None:
    stops = (13, 14, 15, 16, 17, 18, 19, 20, 22, 23) if "second epoch" in name else (2, 4, 5, 6, 7, 8, 9, 10, 11, 12)
    _check(MORE[name], tmp_path, stops)


def test_the_configuration_of_the_lesson_and_what_a_checkpoint_holds(tmp_path: Path) -> None:
    """Adapter only, of the size that the arithmetic gives; the tokenizer beside it; three checkpoints stay."""
    build = partial(sft, save_steps=2, load_best_model_at_end=False)
    ran = run(build, tmp_path / "triage-v3")
    kept = sorted(tmp_path.glob("triage-v3/checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    assert [path.name for path in kept] == ["checkpoint-8", "checkpoint-10", "checkpoint-12"]
    adapter = load_file(kept[-1] / "adapter_model.safetensors")
    # Two matrices of rank 4 for each of two projections of 32 x 32 in each of two layers.
    assert sum(held.numel() for held in adapter.values()) == 2 * 2 * (4 * 32 + 32 * 4)
    manifest = from_text((kept[-1] / "manifest.json").read_text(), digest_of_bytes)
    moments = sum(held.numel() for held in ran.optimizer if held.numel() > 1)
    assert moments == 2 * sum(held.numel() for held in adapter.values())
    assert manifest.files["adapter_model.safetensors"].size < 4 * 2048 + 4096
    assert {"tokenizer.json", "optimizer.pt", "scheduler.pt", "rng_state.pth", "run.json"} <= set(manifest.files)
    assert not any(name == "model.safetensors" for name in manifest.files)
    record = json.loads((kept[-1] / "run.json").read_text())
    assert record["seed"] == 7
    assert record["trl"]
    assert record["dataset_sha256"]
    assert record["base_weights"]
    assert record["tokenizer_sha256"]
    assert list(record["adapters"]) == ["default"]


def test_peft_reads_a_checkpoint_by_itself(tmp_path: Path) -> None:
    from peft import PeftModel

    ran = run(sft, tmp_path)
    model = PeftModel.from_pretrained(llama(), tmp_path / "checkpoint-12")
    for name, held in model.state_dict().items():
        assert torch.equal(held, ran.weights[name]), name
