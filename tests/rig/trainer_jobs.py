"""Trainers as jobs that are killed and started again: one of transformers, and one of TRL with an adapter."""

import os
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

# Accelerate imports it late, for seconds: here it comes once, and not in each forked rank.
import datasets
import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState, GradientState, PartialState
from tqdm import tqdm
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, TrainerCallback, set_seed
from transformers.utils.logging import disable_progress_bar

from keepstep.dist.world import World
from keepstep.integrations.hugging_face import make_resumable, session
from keepstep.plan.layout import TRAINER
from keepstep.storage.survey import survey
from tests.rig import forks, lora, trainers

TOTAL, PERIOD = 4, 2
_WORDS = ("a", "b", "p", "cat", "dog", "runs", "sleeps", "far", "here")
KINDS = ("trainer", "adapter")

datasets.disable_progress_bars()
disable_progress_bar()
# A lock that forked processes share stays locked for ever by one that was killed while it held it.
tqdm.set_lock(threading.RLock())


class _Begins(TrainerCallback):
    """Notes where training began; it is not called for a run that is finished already."""

    step = TOTAL

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.step = state.global_step


def newest(folder: Path) -> int:
    """The newest committed step in a run's folder."""
    return max([0, *(found.found.step for found in survey(folder, TRAINER).complete)])


def reset() -> None:
    """A forked process is not what its parent was."""
    PartialState._reset_state()
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


def meet() -> None:
    """Let transformers find the ranks of a forked process."""
    reset()
    if dist.is_initialized():
        # Asked for only; the ranks have met already.
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1", LOCAL_WORLD_SIZE=os.environ["WORLD_SIZE"])

        def ranks(timeout: timedelta) -> World:  # they may be killed at any call
            return forks.world

        session.current_world = ranks


def trainer(folder: Path, kind: str, **more: Any) -> Any:
    """A trainer of the kind, whose model is the same each time."""
    common = {"max_steps": TOTAL, "save_steps": PERIOD, "save_total_limit": 1, "warmup_steps": 1, **more}
    if kind == "trainer":
        made: Any = trainers.tiny_trainer(folder, **{"per_device_train_batch_size": 2, **common})
    else:
        made = sft_trainer(folder, **common)
    made.remove_callback(PrinterCallback)
    return made


def sft_trainer(folder: Path, **more: Any) -> Any:
    """TRL's trainer for a GPT-2 with an adapter, on sentences of a few words."""
    import trl
    from peft import LoraConfig

    set_seed(3)
    config = GPT2Config(
        vocab_size=len(_WORDS), n_positions=16, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    # Tokenized before, since that is asked of forked processes each time.
    rows = [
        {"input_ids": [0, 3 + n % 2, 5 + n // 2 % 2, 7 + n // 4 % 2] + [n % 9] * (n % 3)}
        for n in range(trainers.SAMPLES)
    ]
    callbacks = more.pop("callbacks", [])
    settings = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 2,
        "use_cpu": True,
        "bf16": False,
        (
            "activation_checkpointing"
            if hasattr(trl.SFTConfig, "activation_checkpointing")
            else "gradient_checkpointing"
        ): False,
        "report_to": [],
        "logging_steps": 1,
        "disable_tqdm": True,
        "seed": 7,
        "learning_rate": 1e-2,
        "max_length": 16,
        **more,
    }
    return trl.SFTTrainer(
        model=GPT2LMHeadModel(config),
        args=trl.SFTConfig(**settings),
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=lora.tokenizer(_WORDS),
        peft_config=LoraConfig(r=2, target_modules=["c_attn"], task_type="CAUSAL_LM", fan_in_fan_out=True),
        callbacks=callbacks,
    )


def train(
    folder: Path, kind: str = "trainer", mode: str = "sync", *, total: int = TOTAL, **options: Any
) -> dict[str, Any]:
    """Run or resume; gives where it began, and the end: weights, moments, all that was logged, what lies about."""
    meet()
    begins = _Begins()
    made = trainer(folder, kind, callbacks=[begins], max_steps=total)
    make_resumable(made, mode=mode, handle_signals=False, **options)
    made.train(resume_from_checkpoint=True)
    # Only a save clears away what lies about.
    return {"start": begins.step, **end(made), "left": left_over(folder) if begins.step < TOTAL else []}


def end(made: Any) -> dict[str, Any]:
    """Weights, moments and logs of a trainer that has ended, without what clocks have to do with."""
    timed = ("runtime", "per_second", "time")
    logged = [
        {name: value for name, value in row.items() if not any(word in name for word in timed)}
        for row in made.state.log_history
        if "train_runtime" not in row
    ]
    return {
        "weights": {name: value.tolist() for name, value in made.model.state_dict().items()},
        "moments": [
            value.tolist()
            for state in made.optimizer.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor)
        ],
        "logged": logged,
    }


def left_over(folder: Path) -> list[str]:
    """What a save under way has in a run's folder: after one that has ended there is none."""
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(".") and path.name != ".keepstep")
