"""What a Trainer leaves out, or changes silently, when it goes on from a checkpoint: put right as it loads."""

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from keepstep.checkpoint.folder_resume import verify_together
from keepstep.dist.world import World
from keepstep.errors import DamagedCheckpointError
from keepstep.integrations.hugging_face import extras, settings
from keepstep.integrations.hugging_face.order import DataOrder
from keepstep.plan import layout

logger = logging.getLogger("keepstep")


class AlreadyCompleteError(Exception):
    """Ends `train()` before a callback, a tracker or a step has begun. Never leaves it."""


class Restoring:
    """One start that goes on from a checkpoint.

    Args:
        trainer: what is restored.
        checkpoint: verified, and known to hold what is needed; None at the first step.
        folder: the run's folder.
        world: the ranks.
        order: of the data.
    """

    def __init__(self, trainer: Any, checkpoint: Path | None, folder: Path, world: World, order: DataOrder) -> None:
        self._trainer, self._checkpoint, self._folder = trainer, checkpoint, folder
        self._world, self._order = world, order
        self._loss: torch.Tensor | None = None
        self._found: dict[str, Any] | None = None
        self._owes_epoch_end = self._owes_evaluation = False
        self.made_with: list[dict[str, Any]] = []

    def optimizer_and_scheduler(self, load: Callable[[], None]) -> None:
        """Load, and let the present arguments win where they differ."""
        trainer = self._trainer
        self.made_with = settings.options_of(trainer.optimizer)
        load()
        if self.made_with:
            then = (self._extras() or {}).get("made_with")
            changes = settings.apply_options(trainer.optimizer, trainer.lr_scheduler, self.made_with, then)
            self._list(changes)

    def _extras(self) -> dict[str, Any] | None:
        if self._checkpoint is not None and self._found is None:
            self._found = extras.read_extras(self._checkpoint, self._world.rank)
        return self._found

    def random_states(self, load: Callable[[], None], checkpoint: Path) -> None:
        """Load; ranks that the checkpoint does not know, where that was accepted, draw numbers of their own.

        Raises:
            DamagedCheckpointError: they cannot be read. Without them nothing would be as it was.
        """
        rank, size = self._world.rank, self._world.size
        path = checkpoint / ("rng_state.pth" if size <= 1 else f"rng_state_{rank}.pth")
        if path.is_file():
            try:
                load()
            except (RuntimeError, ValueError, KeyError, EOFError, OSError) as error:
                raise DamagedCheckpointError(f"{path} cannot be read: {error}. Resume from another one") from error
            return
        from transformers import set_seed

        set_seed((int(self._trainer.args.seed) + 1_000_003 * (rank + 1) + self._trainer.state.global_step) % (1 << 32))
        logger.warning("%s is not there: rank %d draws new random numbers from here on", path, rank)

    def callbacks(self) -> None:
        """Callbacks that keep a state get it back (patience, say), with the arguments that they have now."""
        from transformers.trainer_callback import ExportableState, TrainerControl

        present: dict[str, list[Any]] = {}
        for callback in self._trainer.callback_handler.callbacks:
            if isinstance(callback, ExportableState) and not isinstance(callback, TrainerControl):
                present.setdefault(type(callback).__name__, []).append(callback)
        for name, callbacks in present.items():
            held = self._trainer.state.stateful_callbacks.get(name)
            if held is None:
                continue
            # Of several of a kind the Trainer appends their states at each save.
            states = held[-len(callbacks) :] if isinstance(held, list) else [held]
            for callback, state in zip(callbacks, states, strict=False):
                for attribute, value in state.get("attributes", {}).items():
                    setattr(callback, attribute, value)

    def best_model(self, load: Callable[[], None]) -> None:
        """Verify the best checkpoint before its weights are loaded. Raises DamagedCheckpointError."""
        best = self._trainer.state.best_model_checkpoint
        path = Path(best) if best else None
        step = layout.any_step_of(path.name) if path else None
        if path is not None and step is not None and (path / layout.MANIFEST).is_file():
            damage, _ = verify_together(path, step, self._world)
            if damage:
                raise DamagedCheckpointError(f"{path} is the best checkpoint and is damaged: {damage[0]}")
        load()

    def train_begins(self) -> None:
        """All is loaded, and nothing has begun: callbacks, trackers and steps come after this.

        Raises:
            AlreadyCompleteError: the run has ended before.
        """
        trainer, checkpoint = self._trainer, self._checkpoint
        if checkpoint is None:
            self.made_with = settings.options_of(trainer.optimizer)
            return
        state = trainer.state
        self._list(settings.apply_steps(state, trainer.args))
        self._relocate_best(state)
        if state.global_step >= state.max_steps or self._was_stopped_early():
            raise AlreadyCompleteError
        if trainer.args.ignore_data_skip and self._world.rank == 0:
            logger.warning("ignore_data_skip=True: samples of this epoch that were trained on come again")
        found = self._extras()
        if found is not None:
            extras.apply_extras(trainer, found, checkpoint)
            self._loss = extras.apply_loss(trainer, found)
            self._order.restore(found.get("order", {}), is_mid_epoch=bool(found.get("is_mid_epoch")))
            self._owes_epoch_end = bool(found.get("owes_epoch_end"))
            self._owes_evaluation = bool(found.get("owes_evaluation"))
            self._found = None

    def epoch_begins(self) -> None:
        """What came after the save, and is made up for: the end of an epoch (a save at its last step comes before that
        is told to callbacks, logged and evaluated), and an evaluation that a stop left no time for.

        Raises:
            AlreadyCompleteError: that evaluation ends the run.
        """
        if self._checkpoint is None or not (self._owes_epoch_end or self._owes_evaluation):
            return
        trainer, state = self._trainer, self._trainer.state
        trainer._load_rng_state(str(self._checkpoint))
        if self._owes_evaluation:
            trainer.control.should_evaluate = True
            trainer.control.should_log = trainer.control.should_save = False
            self._log_save_evaluate()
        if self._owes_epoch_end and not trainer.control.should_training_stop:
            trainer.control = trainer.callback_handler.on_epoch_end(trainer.args, state, trainer.control)
            self._log_save_evaluate()
        self._owes_epoch_end = self._owes_evaluation = False
        if trainer.control.should_training_stop:
            raise AlreadyCompleteError

    def _log_save_evaluate(self) -> None:
        trainer, state = self._trainer, self._trainer.state
        loss = getattr(trainer, "_tr_loss", None)
        if loss is None:  # transformers 4 keeps it in a variable of its loop
            loss, self._loss = torch.zeros((), device=trainer.args.device), self._loss
        epoch = int(state.epoch or 0) - 1
        trainer._maybe_log_save_evaluate(loss, None, trainer.model_wrapped, None, epoch, None, time.time())
        trainer.control.should_evaluate = trainer.control.should_log = trainer.control.should_save = False

    def add_loss(self, loss: Any) -> None:
        """To the sum of losses that passes by, add once what was summed before the checkpoint."""
        if self._loss is not None:
            loss += self._loss.to(loss.device)
            self._loss = None

    def _relocate_best(self, state: Any) -> None:
        """The best checkpoint is named by its path; the run's folder may have been moved since."""
        best, step = state.best_model_checkpoint, getattr(state, "best_global_step", None)
        name = os.path.basename(best) if best else layout.TRAINER.checkpoint_name(step) if step else None
        if name and (self._folder / name).is_dir():
            state.best_model_checkpoint = str(self._folder / name)

    def _was_stopped_early(self) -> bool:
        return any(
            0 < callback.early_stopping_patience <= callback.early_stopping_patience_counter
            for callback in self._trainer.callback_handler.callbacks
            if hasattr(callback, "early_stopping_patience_counter")
        )

    def _list(self, changes: list[str]) -> None:
        if changes and self._world.rank == 0:
            listed = "; ".join(changes)
            logger.warning("present arguments go before those that the checkpoint was saved with: %s", listed)
