"""One trainer under keepstep: what happens at each hook (`hooks.py`), from the start of `train()` to its end."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from keepstep.checkpoint.failed_saves import FailedSaves
from keepstep.checkpoint.folder_resume import verify_together
from keepstep.checkpoint.identity import RunIdentity, with_dataset
from keepstep.checkpoint.run_folder import RunFolder
from keepstep.checkpoint.stop import StopNotice
from keepstep.checkpoint.watchdog import watched
from keepstep.dist.agree import agreed
from keepstep.dist.world import World, current_world
from keepstep.errors import DamagedCheckpointError, ResumeError, StopRequested
from keepstep.integrations.hugging_face import extras, settings
from keepstep.integrations.hugging_face.callback import KeepstepCallback
from keepstep.integrations.hugging_face.facts import facts_of
from keepstep.integrations.hugging_face.jit import take_over_jit
from keepstep.integrations.hugging_face.options import Options
from keepstep.integrations.hugging_face.order import DataOrder
from keepstep.integrations.hugging_face.refusals import refuse_what_cannot_be_resumed
from keepstep.integrations.hugging_face.saving import Saves
from keepstep.integrations.hugging_face.starting import Start, choose_start
from keepstep.plan import layout
from keepstep.storage.tracing import note_start, trace_this_process

logger = logging.getLogger("keepstep")

# The attribute of a trainer that holds its session.
SESSION = "_keepstep_session"


class _AlreadyCompleteError(Exception):
    """Ends `train()` before a callback, a tracker or a step has begun."""


class Session:
    """What keepstep knows and does for one trainer. Each public method is a hook, or called by the callback.

    Args:
        trainer: a `transformers.Trainer`.
        options: what was chosen.

    Raises:
        ConfigError: the options do not work, or the trainer is set up in a way that cannot be resumed.
    """

    def __init__(self, trainer: Any, options: Options) -> None:
        self._trainer, self._options = trainer, options
        options.config(trainer.args.output_dir, trainer.args.save_total_limit)
        refuse_what_cannot_be_resumed(trainer)
        take_over_jit(trainer)
        self._is_training = False
        self._redirect: Path | None = None
        self._hides_checkpoints = False
        self._has_delayed_push = False

    # The run, from begin to end.

    def train(
        self,
        original: Callable[..., Any],
        resume_from_checkpoint: Any = None,
        trial: Any = None,
        *rest: Any,
        **more: Any,
    ) -> Any:
        """Choose where to begin, train, and end: finished, stopped or with an error."""
        trainer = self._trainer
        refuse_what_cannot_be_resumed(trainer)
        self._open(Path(trainer._get_output_dir(trial)), trial)
        try:
            with self._getting_data(), self._listening():
                if resume_from_checkpoint is None and self._options.auto_resume:
                    resume_from_checkpoint = True
                self._start = self._choose(resume_from_checkpoint)
                try:
                    output = original(self._start.path_for_trainer, trial, *rest, **more)
                except _AlreadyCompleteError:
                    output = self._already_complete()
                self._saves.finish()
            if self._stops:
                self._note_stop()
            return output
        finally:
            self._close()

    def _open(self, folder: Path, trial: Any) -> None:
        args = self._trainer.args
        self._folder, self._trial = folder, trial
        self._world: World = current_world(timedelta(seconds=self._options.timeout_seconds))
        self._config = self._options.config(str(folder), args.save_total_limit)
        self._run = RunFolder(folder, self._world, naming=layout.TRAINER)
        self._order = DataOrder(int(args.seed))
        self._notice = StopNotice()
        self._stops = False
        self._loss: Any = None
        self._carried: Any = None
        self._is_training = True

    def _close(self) -> None:
        self._is_training = False
        self._hides_checkpoints = False
        self._redirect = None
        if hasattr(self, "_saves"):
            self._saves.close()
        self._run.give_back()
        self._trainer.remove_callback(KeepstepCallback)

    def _choose(self, asked: Any) -> Start:
        trainer, world = self._trainer, self._world
        if world.rank == 0:
            self._folder.mkdir(parents=True, exist_ok=True)
        identity = self._identity()
        claim = self._run.take()
        trace_this_process(world.rank)
        with watched(f"resuming from {self._folder}", self._options.hang_seconds):
            start = choose_start(trainer, self._folder, asked, world, self._run, self._config, identity, claim)
        identity.note_accepted()
        self._run.forget_note()
        failed = FailedSaves(self._config, world, self._run)
        self._saves = Saves(trainer, self._folder, world, claim, identity, self._options, failed, start)
        trainer.callback_handler.callbacks.insert(0, KeepstepCallback(self))
        if world.rank == 0:
            text = f"resumed from step {start.step} ({start.path})" if start.path else "starting from the first step"
            logger.info("%s", text)
            note_start(start.step)
        return start

    def _identity(self) -> RunIdentity:
        trainer, world = self._trainer, self._world
        with agreed(world, "identifying data, tokenizer and base weights", ResumeError):
            facts = facts_of(trainer)
            if world.rank == 0 and trainer.train_dataset is not None:
                facts = with_dataset(facts, trainer.train_dataset)
        identity = RunIdentity(
            self._folder, world, facts, self._config, tuple(self._options.accept), naming=layout.TRAINER
        )
        identity.describe([trainer.model])
        identity.record()
        return identity

    def _already_complete(self) -> Any:
        """What `train()` returns for a run that is finished: its weights are loaded, and nothing else happens."""
        from transformers.trainer_utils import TrainOutput

        trainer = self._trainer
        trainer.is_in_train = False
        if trainer.args.load_best_model_at_end and trainer.state.best_model_checkpoint:
            trainer._load_best_model()
        if self._world.rank == 0:
            logger.info("Training is already complete, nothing to do (step %d)", trainer.state.global_step)
        loss = next((one["train_loss"] for one in reversed(trainer.state.log_history) if "train_loss" in one), 0.0)
        return TrainOutput(trainer.state.global_step, loss, {"train_loss": loss})

    def _note_stop(self) -> None:
        step = self._trainer.state.global_step
        self._run.note_stop(step, self._saves.last_step)
        raise StopRequested(
            f"a stop was requested: step {step} is saved in {self._folder}. Run the same command again, with "
            "resume_from_checkpoint=True, to go on"
        )

    # Hooks of the start.

    def load_from_checkpoint(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    def load_optimizer_and_scheduler(self, original: Callable[..., Any], checkpoint: Any) -> None:
        """Load, and let the present arguments win where they differ."""
        trainer = self._trainer
        if not self._is_training or checkpoint is None:
            original(checkpoint)
            return
        wanted = settings.options_of(trainer.optimizer)
        original(checkpoint)
        if wanted:
            self._list_changes(settings.apply_options(trainer.optimizer, trainer.lr_scheduler, wanted))

    def load_rng_state(self, original: Callable[..., Any], checkpoint: Any) -> None:
        """Load; ranks that the checkpoint does not know, where that was accepted, draw numbers of their own."""
        if not self._is_training or checkpoint is None:
            original(checkpoint)
            return
        rank, size = self._world.rank, self._world.size
        path = Path(checkpoint) / ("rng_state.pth" if size <= 1 else f"rng_state_{rank}.pth")
        if path.is_file():
            try:
                original(checkpoint)
            except (RuntimeError, ValueError, KeyError, EOFError, OSError) as error:
                raise DamagedCheckpointError(
                    f"{path} cannot be read: {error}. Resume from another checkpoint"
                ) from error
            return
        from transformers import set_seed

        set_seed((int(self._trainer.args.seed) + 1_000_003 * (rank + 1) + self._trainer.state.global_step) % (1 << 32))
        logger.warning("%s is not there: rank %d draws new random numbers from here on", path, rank)

    def load_callback_state(self, original: Callable[..., Any]) -> None:
        """Callbacks that keep a state get it back (patience, say), with the arguments that they have now."""
        trainer = self._trainer
        original()
        if trainer.args.restore_callback_states_from_checkpoint or not self._is_training:
            return
        from transformers.trainer_callback import ExportableState, TrainerControl

        present: dict[str, list[Any]] = {}
        for callback in trainer.callback_handler.callbacks:
            if isinstance(callback, ExportableState) and not isinstance(callback, TrainerControl):
                present.setdefault(type(callback).__name__, []).append(callback)
        for name, callbacks in present.items():
            held = trainer.state.stateful_callbacks.get(name)
            if held is None:
                continue
            states = held[-len(callbacks) :] if isinstance(held, list) else [held]
            for callback, state in zip(callbacks, states, strict=False):
                for attribute, value in state.get("attributes", {}).items():
                    setattr(callback, attribute, value)

    def load_best_model(self, original: Callable[..., Any]) -> None:
        """Verify the best checkpoint before its weights are loaded."""
        best = self._trainer.state.best_model_checkpoint
        path = Path(best) if best else None
        step = layout.any_step_of(path.name) if path else None
        if self._is_training and path is not None and step is not None and (path / layout.MANIFEST).is_file():
            damage, _ = verify_together(path, step, self._world)
            if damage:
                raise DamagedCheckpointError(f"{path} is the best checkpoint and is damaged: {damage[0]}")
        original()

    def train_begins(self, control: Any) -> None:
        """All is loaded, and nothing has begun: callbacks, trackers and steps come after this."""
        trainer, start = self._trainer, self._start
        if start.path is None:
            return
        state = trainer.state
        self._list_changes(settings.apply_steps(state, trainer.args))
        self._relocate_best(state)
        if state.global_step >= state.max_steps or self._was_stopped_early(trainer):
            raise _AlreadyCompleteError
        found = extras.read_extras(start.path, self._world.rank)
        if found is not None:
            extras.apply_extras(trainer, found, start.path)
            self._carried = extras.apply_loss(trainer, found)
            self._order.restore(found.get("order", {}), is_mid_epoch=bool(found.get("is_mid_epoch")))

    def _relocate_best(self, state: Any) -> None:
        """The best checkpoint is named by its path; the run's folder may have been moved since."""
        best, step = state.best_model_checkpoint, getattr(state, "best_global_step", None)
        name = os.path.basename(best) if best else layout.TRAINER.checkpoint_name(step) if step else None
        if name and (self._folder / name).is_dir():
            state.best_model_checkpoint = str(self._folder / name)

    @staticmethod
    def _was_stopped_early(trainer: Any) -> bool:
        return any(
            0 < callback.early_stopping_patience <= callback.early_stopping_patience_counter
            for callback in trainer.callback_handler.callbacks
            if hasattr(callback, "early_stopping_patience_counter")
        )

    def _list_changes(self, changes: list[str]) -> None:
        if changes and self._world.rank == 0:
            logger.warning(
                "present arguments go before those that the checkpoint was saved with: %s", "; ".join(changes)
            )

    # Hooks of the data.

    @contextmanager
    def _getting_data(self) -> Iterator[None]:
        """While this trains, its loader draws from the data's stream. On the object, over what subclasses do."""
        trainer, order = self._trainer, self._order
        get = trainer.get_train_dataloader
        trainer.get_train_dataloader = lambda: order.take_over(get())
        try:
            yield
        finally:
            del trainer.get_train_dataloader

    def get_batch_samples(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self._is_training:
            return original(*args, **kwargs)
        with self._order.reading():
            batches, items = original(*args, **kwargs)
        self._order.has_read(len(batches))
        return batches, items

    def epoch_begins(self) -> None:
        self._order.epoch_begins(int(self._trainer.state.epoch or 0))

    # Hooks of the steps and the saves.

    def maybe_log_save_evaluate(self, original: Callable[..., Any], tr_loss: Any, *args: Any, **kwargs: Any) -> Any:
        """The sum of losses since the last log passes by here, in every version of the Trainer."""
        if self._carried is not None:
            tr_loss += self._carried.to(tr_loss.device)
            self._carried = None
        self._loss = tr_loss
        return original(tr_loss, *args, **kwargs)

    @contextmanager
    def _listening(self) -> Iterator[None]:
        if self._options.takes_signals:
            self._notice.install(self._options.stop_signals)
        try:
            yield
        finally:
            self._notice.restore()

    def step_ends(self, control: Any) -> None:
        """All ranks agree whether a stop was requested; then this step is saved, and is the last."""
        self._saves.hear()
        if self._options.takes_signals and any(self._world.gather(self._notice.noted is not None)) and not self._stops:
            self._stops = True
            if self._world.rank == 0:
                logger.warning("stop requested: saving step %d and leaving", self._trainer.state.global_step)
        if self._stops:
            control.should_save = control.should_training_stop = True

    def get_output_dir(self, original: Callable[..., Any], trial: Any) -> str:
        """Where the Trainer looks for and writes checkpoints: while it saves, a temporary folder."""
        if self._redirect is not None:
            return str(self._redirect)
        if self._hides_checkpoints:
            return str(self._folder / layout.KEEPSTEP_FOLDER / "no-checkpoints")
        return str(original(trial))

    def save_checkpoint(self, original: Callable[..., Any], model: Any, trial: Any) -> None:
        if not self._is_training:
            original(model, trial)
            return
        state = self._trainer.state
        is_last = self._stops or state.global_step >= state.max_steps

        def write(temporary: Path) -> None:
            self._redirect = temporary
            try:
                original(model, trial)
            finally:
                self._redirect = None

        order = {"order": self._order.state(), "is_mid_epoch": not float(state.epoch or 0).is_integer()}
        self._has_delayed_push = False
        self._saves.save(write, order, self._loss, is_last=is_last, push=lambda: self._has_delayed_push)

    def push_from_checkpoint(self, original: Callable[..., Any], checkpoint_folder: str) -> None:
        """Nothing is pushed from a folder that is not committed: the push is made up for after the commit."""
        if self._redirect is not None:
            self._has_delayed_push = True
            return
        original(checkpoint_folder)

    def finish_current_push(self, original: Callable[..., Any]) -> None:
        if self._is_training:
            self._saves.finish_pushes()
        original()

    def finalize_training(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The Trainer deletes checkpoints here by itself: it sees none."""
        if not self._is_training:
            return original(*args, **kwargs)
        self._hides_checkpoints = True
        self._saves.wait()
        if self._stops:
            return self._leave()
        return original(*args, **kwargs)

    def _leave(self) -> Any:
        """On a stop there is no time for the best model, and no summary: this is not the end of the run."""
        from transformers.trainer_utils import TrainOutput

        trainer = self._trainer
        trainer.control = trainer.callback_handler.on_train_end(trainer.args, trainer.state, trainer.control)
        trainer._finish_current_push()
        trainer.is_in_train = False
        return TrainOutput(trainer.state.global_step, 0.0, {})

    def sorted_checkpoints(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return [] if self._is_training else original(*args, **kwargs)

    def rotate_checkpoints(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        if not self._is_training:
            original(*args, **kwargs)
