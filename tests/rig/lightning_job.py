"""A tiny training with Lightning's Trainer: two epochs of ten steps, losses in hex, and all that is left at its end."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from keepstep.integrations.lightning import make_resumable


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        self.losses: list[str] = []

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.losses.append(float(loss.detach()).hex())
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), 0.01)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class EndAt(Callback):
    """The process is gone after a step, saved or not: without a word, as by a kill."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            os._exit(9)


def samples(ranks: int = 1) -> TensorDataset:
    inputs = torch.randn(40 * ranks, 8, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


def with_position() -> Any:
    # In one order: Lightning's checkpoints hold no random states, and it tells a sampler the epoch after it has begun.
    return StatefulDataLoader(samples(), 4)


def in_order(ranks: int = 1) -> Any:
    return DataLoader(samples(ranks), 4)


def trainer(folder: Path, *callbacks: Any, ranks: int = 1, resumable: bool = True, **options: Any) -> Any:
    """A Trainer that saves every third step (or as `saving` says) into `folder`."""
    saving = {"filename": "ck-{step}", "every_n_train_steps": 3, "save_top_k": -1, "save_last": True}
    checkpoints = ModelCheckpoint(dirpath=folder, **saving | options.pop("saving", {}))
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    place = {"accelerator": "cpu", "devices": ranks, "default_root_dir": folder}
    if ranks > 1:
        os.environ["TORCHELASTIC_RUN_ID"] = "rig"  # the ranks are there
        options.setdefault("strategy", "ddp")
    made = pl.Trainer(callbacks=[checkpoints, *callbacks], **{"max_epochs": 2} | quiet | place | options)
    if resumable:
        make_resumable(made)
    return made


def train(
    folder: Path, *callbacks: Any, loader: Callable[[], Any] = with_position, path: Any = "last", **options: Any
) -> dict[str, Any]:
    """Train to the end; the step that it began from, the losses since, and a digest of the weights."""
    module = Module()
    began: list[int] = []
    note = Callback()
    note.on_train_start = lambda trainer, _: began.append(trainer.global_step)  # type: ignore[method-assign]
    made = trainer(folder, *callbacks, note, **options)
    made.fit(module, loader(), ckpt_path=path)
    weights = hashlib.sha256()
    for value in module.state_dict().values():
        weights.update((value.full_tensor() if hasattr(value, "full_tensor") else value).numpy().tobytes())
    return {"start": began[0], "losses": module.losses, "weights": weights.hexdigest()}
