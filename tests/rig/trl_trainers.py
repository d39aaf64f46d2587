"""Tiny trainers of TRL: supervised, preferences, rewards. Model and tokenizer are made here, nothing is fetched."""

from pathlib import Path
from typing import Any

from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

TEXTS = [f"question {i} what is {i} plus {i * 7 % 13}? it is {i + i * 7 % 13} " + "word " * (i % 9) for i in range(60)]
COMMON = {
    "max_steps": 12,
    "save_steps": 3,
    "save_total_limit": 3,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "use_cpu": True,
    "report_to": [],
    "logging_steps": 1,
    "disable_tqdm": True,
    "seed": 7,
    "learning_rate": 1e-2,
    "bf16": False,
    "gradient_checkpointing": False,
}


def tokenizer() -> Any:
    raw = Tokenizer(models.BPE(unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>", "<s>", "</s>", "<pad>"], show_progress=False)
    raw.train_from_iterator(TEXTS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        model_input_names=["input_ids", "attention_mask"],
    )


def llama() -> Any:
    set_seed(3)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=3,
    )
    return LlamaForCausalLM(config)


def sft(folder: Path, callbacks: Any = (), *, lora: bool = True, kind: Any = SFTTrainer, **more: Any) -> Any:
    adapter = LoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj"]) if lora else None
    return kind(
        model=llama(),
        args=SFTConfig(**{**COMMON, "output_dir": str(folder), "max_length": 64, **more}),
        train_dataset=Dataset.from_dict({"text": TEXTS}),
        processing_class=tokenizer(),
        peft_config=adapter,
        callbacks=list(callbacks),
    )


def dpo(folder: Path, callbacks: Any = (), **more: Any) -> Any:
    data = Dataset.from_dict(
        {
            "prompt": TEXTS[:30],
            "chosen": [text[::-1][:20] for text in TEXTS[:30]],
            "rejected": [f"bad {text[:9]}" for text in TEXTS[:30]],
        }
    )
    return DPOTrainer(
        model=llama(),
        ref_model=llama(),
        args=DPOConfig(**{**COMMON, "output_dir": str(folder), "max_length": 64, **more}),
        train_dataset=data,
        processing_class=tokenizer(),
        callbacks=list(callbacks),
    )


def reward(completions: Any, **more: Any) -> list[float]:
    return [float(len(set(completion))) for completion in completions]


def grpo(folder: Path, callbacks: Any = (), **more: Any) -> Any:
    saved = folder.parent / "base"
    if not saved.is_dir():
        llama().save_pretrained(saved)
    set_seed(3)
    return GRPOTrainer(
        model=str(saved),
        reward_funcs=reward,
        args=GRPOConfig(
            **{**COMMON, "output_dir": str(folder), "max_completion_length": 8, "num_generations": 2, **more}
        ),
        train_dataset=Dataset.from_dict({"prompt": [text[:20] for text in TEXTS[:14]]}),
        processing_class=tokenizer(),
        callbacks=list(callbacks),
    )
