"""LoRA fine-tuning with TRL. Kill it whenever you like, and start it again with the same command.

python examples/sft/base.py runs/sft/base      # once: the model that is tuned
python examples/sft/train.py runs/sft/tuned
"""

import argparse
import logging
from pathlib import Path

from datasets import Dataset
from pairs import pairs
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed
from trl import SFTConfig, SFTTrainer

from keepstep.integrations.hugging_face import make_resumable


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--base", type=Path, default=Path("runs/sft/base"))
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--save-steps", type=int, default=10)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)

    set_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(arguments.base)
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(arguments.base),
        args=SFTConfig(
            output_dir=str(arguments.output),
            max_steps=arguments.steps,
            per_device_train_batch_size=16,
            learning_rate=5e-3,
            lr_scheduler_type="cosine",
            max_length=160,
            save_steps=arguments.save_steps,
            save_total_limit=3,
            load_best_model_at_end=False,
            logging_steps=1,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
            seed=0,
        ),
        train_dataset=Dataset.from_list(pairs()),
        processing_class=tokenizer,
        peft_config=LoraConfig(
            r=16,
            lora_alpha=32,
            lora_dropout=0.05,
            target_modules="all-linear",
            modules_to_save=["embed_tokens", "lm_head"],  # the base is so small that it knows few words yet
        ),
    )
    make_resumable(trainer)
    trainer.train(resume_from_checkpoint=True)
    trainer.model.save_pretrained(arguments.output / "adapter")
    tokenizer.save_pretrained(arguments.output / "adapter")


if __name__ == "__main__":
    main()
