"""One trainer under keepstep: what happens at each hook (`hooks.py`), from the start of `train()` to its end."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from keepstep.checkpoint.failed_saves import FailedSaves
from keepstep.checkpoint.mirrors.run_mirrors import RunMirrors
from keepstep.checkpoint.run_folder import RunFolder
from keepstep.checkpoint.stop import StopNotice, waiting_time
from keepstep.checkpoint.volatile import warn_if_volatile
from keepstep.checkpoint.watchdog import watched
from keepstep.dist.agree import agreed
from keepstep.dist.world import World, current_world
from keepstep.errors import ResumeError, StopRequested
from keepstep.integrations.hugging_face.callback import KeepstepCallback
from keepstep.integrations.hugging_face.ending import already_complete, leave
from keepstep.integrations.hugging_face.facts import identify
from keepstep.integrations.hugging_face.jit import take_over_jit
from keepstep.integrations.hugging_face.model_card import sparing_model_cards
from keepstep.integrations.hugging_face.options import Options
from keepstep.integrations.hugging_face.order import DataOrder
from keepstep.integrations.hugging_face.refusals import refuse_what_cannot_be_resumed
from keepstep.integrations.hugging_face.replaced import replaced
from keepstep.integrations.hugging_face.restoring import AlreadyCompleteError, Restoring
from keepstep.integrations.hugging_face.saving import Saves
from keepstep.integrations.hugging_face.seeded import untouched_random_states
from keepstep.integrations.hugging_face.starting import Start, choose_start
from keepstep.plan import layout
from keepstep.storage.tracing import note_start, trace_this_process

logger = logging.getLogger("keepstep")

# The attribute of a trainer that holds its session.
SESSION = "_keepstep_session"


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
            with self._getting_data(), self._listening(), sparing_model_cards(trainer):
                if resume_from_checkpoint is None and self._options.auto_resume:
                    resume_from_checkpoint = True
                self._start = self._choose(resume_from_checkpoint)
                with self._saves.telling():
                    try:
                        output = original(self._start.path_for_trainer, trial, *rest, **more)
                    except AlreadyCompleteError:
                        output = already_complete(self._trainer, self._world)
                    if self._stops:
                        self._run.note_stop(self._trainer.state.global_step, self._saves.last_step)
                    self._saves.finish(waiting_time(self._notice, None), stopped=self._stops)
            if self._stops:
                self._raise_stop()
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
        self._has_epoch_ended = False
        self._has_left = self._owes_evaluation = False
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
        with agreed(world, f"making {self._folder}", ResumeError):
            if world.rank == 0:
                self._folder.mkdir(parents=True, exist_ok=True)
        identity = identify(trainer, self._folder, world, self._config, tuple(self._options.accept))
        stops = self._config.on_damage == "stop"
        name = self._folder.name
        mirrors = RunMirrors(self._config.mirror, self._folder, name, world, layout.TRAINER, stops_on_damage=stops)
        mirrors.glance()
        claim = self._run.take(mirrors.attempt)
        warn_if_volatile(self._folder, world, has_mirror=bool(self._config.mirror))
        trace_this_process(world.rank)
        with watched(f"resuming from {self._folder}", self._options.hang_seconds):
            start = choose_start(trainer, self._folder, asked, world, self._run, self._config, identity, claim, mirrors)
        identity.note_accepted()
        self._run.forget_note()
        failed = FailedSaves(self._config, world, self._run)
        mirrors.start(claim)
        self._saves = Saves(trainer, self._folder, world, claim, identity, self._options, failed, start, mirrors)
        self._restoring = Restoring(trainer, start.path, self._folder, world, self._order)
        trainer.callback_handler.callbacks.insert(0, KeepstepCallback(self))
        if world.rank == 0:
            text = f"resumed from step {start.step} ({start.path})" if start.path else "starting from the first step"
            logger.info("%s", text)
            note_start(start.step)
        return start

    def _raise_stop(self) -> None:
        step, saved = self._trainer.state.global_step, self._saves.last_step
        what = f"step {step} is saved" if step == saved else f"step {step} is not saved, and step {saved} is the newest"
        raise StopRequested(
            f"a stop was requested: {what} in {self._folder}. Run the same command again, with "
            "resume_from_checkpoint=True, to go on"
        )

    # Hooks of the start.

    def load_optimizer_and_scheduler(self, original: Callable[..., Any], checkpoint: Any) -> None:
        if self._is_training and checkpoint is not None:
            self._restoring.optimizer_and_scheduler(lambda: original(checkpoint))
        else:
            original(checkpoint)

    def load_rng_state(self, original: Callable[..., Any], checkpoint: Any) -> None:
        if self._is_training and checkpoint is not None:
            self._restoring.random_states(lambda: original(checkpoint), Path(checkpoint))
        else:
            original(checkpoint)

    def load_callback_state(self, original: Callable[..., Any]) -> None:
        original()
        if self._is_training and not self._trainer.args.restore_callback_states_from_checkpoint:
            self._restoring.callbacks()

    def load_best_model(self, original: Callable[..., Any]) -> None:
        if self._is_training:
            self._restoring.best_model(original)
        else:
            original()

    def train_begins(self) -> None:
        """All is loaded, and nothing has begun."""
        self._restoring.train_begins()

    # Hooks of the data.

    @contextmanager
    def _getting_data(self) -> Iterator[None]:
        """While this trains, its loader draws from the data's stream. On the object, over what subclasses do."""
        trainer, order = self._trainer, self._order
        get = trainer.get_train_dataloader
        read = trainer.get_batch_samples

        def get_batch_samples(*args: Any, **kwargs: Any) -> Any:
            with order.reading():
                found = read(*args, **kwargs)
            order.has_read(len(found[0]))
            return found

        place = trainer._get_output_dir
        with (
            replaced(trainer, "_get_output_dir", lambda trial: self.get_output_dir(place, trial)),
            replaced(trainer, "get_train_dataloader", lambda: order.take_over(get())),
            replaced(trainer, "get_batch_samples", get_batch_samples),
        ):
            try:
                yield
            finally:
                order.give_back()

    def epoch_begins(self) -> None:
        """Callbacks come before the first batch of an epoch is asked for."""
        self._restoring.epoch_begins()
        self._has_epoch_ended = False
        self._order.epoch_begins(int(self._trainer.state.epoch or 0))

    def epoch_ends(self) -> None:
        self._has_epoch_ended = True

    def evaluate(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """An evaluation draws nothing of what training draws: it may come before a save or after it."""
        if not self._is_training:
            return original(*args, **kwargs)
        with untouched_random_states():
            return original(*args, **kwargs)

    # Hooks of the steps and the saves.

    def maybe_log_save_evaluate(self, original: Callable[..., Any], tr_loss: Any, *args: Any, **kwargs: Any) -> Any:
        """The sum of losses since the last log passes by here, in every version of the Trainer."""
        if not self._is_training:
            return original(tr_loss, *args, **kwargs)
        self._restoring.add_loss(tr_loss)
        self._loss = tr_loss
        if not self._stops:
            return original(tr_loss, *args, **kwargs)
        # On a stop this step is saved, whatever others decide, and nothing comes after that: no evaluation that was not
        # due, and one that was due when the run goes on.
        if not self._has_left:
            self._has_left = True
            control = self._trainer.control
            self._owes_evaluation, control.should_evaluate = control.should_evaluate, False
            control.should_save = control.should_training_stop = True
            return original(tr_loss, *args, **kwargs)
        return None

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

        is_mid_epoch = not float(state.epoch or 0).is_integer()
        place = {
            "order": self._order.state(),
            "is_mid_epoch": is_mid_epoch,
            "owes_epoch_end": not is_mid_epoch and not self._has_epoch_ended,
            "owes_evaluation": self._owes_evaluation,
            "made_with": self._restoring.made_with,
        }
        self._has_delayed_push = False
        self._saves.save(write, place, self._loss, is_last=is_last, push=lambda: self._has_delayed_push)

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
            return leave(self._trainer)
        return original(*args, **kwargs)

    def sorted_checkpoints(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return [] if self._is_training else original(*args, **kwargs)

    def rotate_checkpoints(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        if not self._is_training:
            original(*args, **kwargs)
