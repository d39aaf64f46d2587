"""Checkpoints as the Hugging Face Trainer writes them, made by hand in milliseconds."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from keepstep.ops.adopt import apply_adopt, plan_adopt
from keepstep.plan.manifest import FileRecord, Manifest, to_text
from keepstep.storage.digest import digest_of_bytes


def make_trainer_checkpoint(
    run: Path, step: int, *, adapter: bool = False, ranks: int = 1, best: int | None = None, tokenizer: bool = False
) -> Path:
    """A `checkpoint-<step>` that keepstep knows nothing of. Its numbers depend on the step."""
    folder = run / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    if adapter:
        prefix = "base_model.model.layer"
        weights = {f"{prefix}.lora_A.weight": torch.ones(2, 8) * step, f"{prefix}.lora_B.weight": torch.ones(4, 2)}
        save_file(weights, folder / "adapter_model.safetensors", {"format": "pt"})
        config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none", "base_model_name_or_path": "some/base"}
        (folder / "adapter_config.json").write_text(json.dumps(config))
    else:
        weights = {"layer.weight": torch.arange(32.0).reshape(4, 8) + step, "layer.bias": torch.zeros(4)}
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        (folder / "config.json").write_text(json.dumps({"model_type": "x", "dtype": "float32"}))
    torch.save({"step": step, "state": torch.ones(40) * step}, folder / "optimizer.pt")
    torch.save({"last_epoch": step}, folder / "scheduler.pt")
    names = ["rng_state.pth"] if ranks == 1 else [f"rng_state_{rank}.pth" for rank in range(ranks)]
    for name in names:
        torch.save({"cpu": torch.zeros(16, dtype=torch.uint8)}, folder / name)
    torch.save({"lr": 0.1}, folder / "training_args.bin")
    if tokenizer:
        (folder / "tokenizer.json").write_text("{}")
    state = {
        "global_step": step,
        "epoch": step / 10,
        "max_steps": 100,
        "best_metric": None if best is None else 0.25,
        "best_model_checkpoint": None if best is None else f"/elsewhere/{run.name}/checkpoint-{best}",
    }
    (folder / "trainer_state.json").write_text(json.dumps(state))
    return folder


def commit(folder: Path, record: dict[str, Any]) -> None:
    """Make one checkpoint keepstep's, with this run record."""
    step = record["step"]
    (folder / "run.json").write_text(json.dumps(record))
    contents = {path.name: path.read_bytes() for path in folder.iterdir()}
    files = {name: FileRecord(len(data), digest_of_bytes(data)) for name, data in contents.items()}
    (folder / "manifest.json").write_text(to_text(Manifest(step, 1, 1, ("model",), files), digest_of_bytes))


def adopt(run: Path) -> Path:
    """Make all of a folder's checkpoints keepstep's."""
    done = apply_adopt(plan_adopt(run))
    assert not done.plan.refused
    assert not done.failed
    return run
