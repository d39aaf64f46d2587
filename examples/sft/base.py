"""A base model and its tokenizer, made here in place of a download: a small Llama that has read some source code.

python examples/sft/base.py runs/sft/base
"""

import argparse
import os
import shutil
from pathlib import Path

import torch
from pairs import pairs, sources
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

VOCABULARY, WINDOW, BATCH = 1024, 64, 16


def make_base(folder: Path, steps: int = 80) -> None:
    """Make both, unless they are there. The folder gets its name last, so that a kill leaves none that is half."""
    if folder.is_dir():
        return
    tokenizer = _tokenizer()
    model = _trained(tokenizer, steps)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    model.save_pretrained(temporary)
    tokenizer.save_pretrained(temporary)
    temporary.rename(folder)


def _tokenizer() -> PreTrainedTokenizerFast:
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator([one["prompt"] + one["completion"] for one in pairs()], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        model_input_names=["input_ids", "attention_mask"],
    )


def _trained(tokenizer: PreTrainedTokenizerFast, steps: int) -> LlamaForCausalLM:
    set_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=512,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    ids = torch.tensor(tokenizer("</s>".join(sources()))["input_ids"])
    windows = ids[: len(ids) // WINDOW * WINDOW].reshape(-1, WINDOW)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(1, steps + 1):
        batch = windows[torch.randint(len(windows), (BATCH,))]
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step == 1 or step % 40 == 0:
            print(f"base model: step {step} of {steps}, loss {loss.item():.2f}", flush=True)
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=80)
    arguments = parser.parse_args()
    arguments.folder.parent.mkdir(parents=True, exist_ok=True)
    make_base(arguments.folder, arguments.steps)
