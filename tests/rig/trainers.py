"""Tiny trainers of transformers and TRL, whose every step is noted: samples, loss bits, rates."""

import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

from keepstep.integrations.hugging_face import make_resumable

SAMPLES = 50
Weights = dict[str, torch.Tensor]


class Numbers(Dataset[Any]):
    """Samples that hold their own index. `draws`: they also draw from every global random state."""

    def __init__(self, draws: bool = False, samples: int = SAMPLES) -> None:
        self.draws, self.samples = draws, samples
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if index >= self.samples:
            raise IndexError(index)
        self.read.append(index)
        content = torch.randint(0, 100, (8 + index % 5,), generator=torch.Generator().manual_seed(index))
        if self.draws:
            content[0] = torch.randint(0, 100, (1,))
            content[1] = random.randrange(100)
            content[2] = int(np.random.randint(100))
        return {"input_ids": content, "labels": content.clone(), "index": torch.tensor(index)}


class Stream(IterableDataset[Any]):
    """The same as a stream, in the order of a shuffle that is drawn anew in each pass."""

    def __init__(self, draws: bool = False) -> None:
        self.numbers = Numbers(draws)

    def __iter__(self) -> Iterator[Any]:
        order = list(range(SAMPLES))
        random.shuffle(order)
        return (self.numbers[index] for index in order)


def collate(features: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Pad to the longest. Draws a number too, as collators that mask do."""
    longest = max(len(one["input_ids"]) for one in features)
    rows = [torch.nn.functional.pad(one["input_ids"], (0, longest - len(one["input_ids"]))) for one in features]
    ids = torch.stack(rows)
    ids[0, 0] = (ids[0, 0] + torch.randint(0, 3, (1,))) % 100
    return {"input_ids": ids, "labels": ids.clone(), "index": torch.stack([one["index"] for one in features])}


class TinyModel(GPT2LMHeadModel):
    """Notes what each training step was given and what came out, in `seen`."""

    seen: list[tuple[list[int], int, str]]

    def forward(self, input_ids: Any = None, labels: Any = None, index: Any = None, **more: Any) -> Any:  # type: ignore[override]
        more.pop("num_items_in_batch", None)
        out = super().forward(input_ids=input_ids, labels=labels, **more)
        if self.training:
            self.seen.append((index.tolist(), int(input_ids.sum()), float(out.loss).hex()))
        return out


def tiny_model() -> TinyModel:
    config = GPT2Config(vocab_size=100, n_positions=32, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    model = TinyModel(config)
    model.seen = []
    return model


class StopAt(TrainerCallback):
    """Ends training after a step as if it had been killed there: what lies beyond the last checkpoint is lost."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if state.global_step == self.step:
            raise Killed


class Killed(Exception):
    """Stands for the end of the process."""


class Rates(TrainerCallback):
    """Notes what is logged."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.is_stream = False

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **more: Any) -> None:
        self.is_stream = isinstance(train_dataloader.dataset, IterableDataset)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
        # Times differ, and to a Trainer an epoch of a stream is another after a resume.
        names = [name for name in logs if not name.startswith("train_") and "time" not in name]
        names = [name for name in names if "per_second" not in name and (name != "epoch" or not self.is_stream)]
        self.rows.append({"step": state.global_step, **{name: _bits(logs[name]) for name in names}})


def _bits(value: Any) -> Any:
    return float(value).hex() if isinstance(value, float) else value


def arguments(folder: Path, **more: Any) -> TrainingArguments:
    common = {
        "output_dir": str(folder),
        "max_steps": 30,
        "save_steps": 5,
        "per_device_train_batch_size": 4,
        "use_cpu": True,
        "report_to": [],
        "logging_steps": 1,
        "disable_tqdm": True,
        "seed": 7,
        "remove_unused_columns": False,
        "learning_rate": 1e-2,
        "warmup_steps": 3,
        "lr_scheduler_type": "cosine",
    }
    return TrainingArguments(**{**common, **more})


def tiny_trainer(
    folder: Path,
    *,
    dataset: Any = None,
    callbacks: Sequence[Any] = (),
    model: Any = None,
    kind: type[Trainer] = Trainer,
    **more: Any,
) -> Trainer:
    set_seed(3)
    dataset = Numbers() if dataset is None else dataset
    return kind(
        model=tiny_model() if model is None else model,
        args=arguments(folder, **more),
        train_dataset=dataset,
        eval_dataset=Numbers(samples=8) if more.get("eval_strategy", "no") != "no" else None,
        data_collator=collate,
        callbacks=list(callbacks),
    )


@dataclass
class Ran:
    """What one start of a trainer did."""

    seen: list[Any]
    rows: list[dict[str, Any]]
    weights: Weights
    trainer: Any = None
    optimizer: list[Any] = field(default_factory=list)

    def rows_after(self, step: int) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["step"] > step]


def run(
    build: Callable[..., Any],
    folder: Path,
    *,
    stop: int | None = None,
    resume: Any = None,
    options: dict[str, Any] | None = None,
    plain: bool = False,
) -> Ran:
    """Start a trainer, perhaps killed at a step. `build(folder, callbacks=...)` makes it."""
    rates = Rates()
    trainer = build(folder, callbacks=[rates, *([StopAt(stop)] if stop else [])])
    if not plain:
        make_resumable(trainer, **{"handle_signals": False, **(options or {})})
    try:
        trainer.train(resume_from_checkpoint=resume)
    except Killed:
        assert stop is not None
    _end_workers(trainer)
    weights = {name: held.clone() for name, held in trainer.model.state_dict().items()}
    moments = [
        value.clone()
        for state in (trainer.optimizer.state.values() if trainer.optimizer is not None else [])
        for value in state.values()
        if isinstance(value, torch.Tensor)
    ]
    return Ran(list(getattr(trainer.model, "seen", [])), rates.rows, weights, trainer, moments)


def _end_workers(trainer: Trainer) -> None:
    """End workers that live on: where garbage is collected, torch waits five seconds for each of them."""
    loader = getattr(trainer.callback_handler, "train_dataloader", None)
    iterator = getattr(getattr(loader, "base_dataloader", loader), "_iterator", None)
    if iterator is not None:
        iterator._shutdown_workers()


def assert_twins(whole: Ran, resumed: Ran, step: int, per_step: int = 1) -> None:
    """What a resumed start did after `step` is what an uninterrupted run did, bit for bit."""
    assert resumed.rows_after(step), "the resumed start logged nothing"
    assert resumed.rows_after(step) == whole.rows_after(step)
    if whole.seen:
        assert resumed.seen == whole.seen[len(whole.seen) - len(resumed.seen) :]
        assert len(resumed.seen) > 0
    assert resumed.weights.keys() == whole.weights.keys()
    for name, held in whole.weights.items():
        assert torch.equal(held, resumed.weights[name]), name
    assert len(whole.optimizer) == len(resumed.optimizer)
    assert all(torch.equal(one, other) for one, other in zip(whole.optimizer, resumed.optimizer, strict=True))


os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
