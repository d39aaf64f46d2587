"""The saves of one `train()`: each in a temporary folder, committed, then told to callbacks, rotated and pushed."""

import copy
import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from keepstep.checkpoint.claim import FolderClaim
from keepstep.checkpoint.failed_saves import FailedSaves
from keepstep.checkpoint.folder_save import SavedFolder
from keepstep.checkpoint.folder_saver import FolderSaver
from keepstep.checkpoint.identity import RunIdentity
from keepstep.checkpoint.mirrors.run_mirrors import RunMirrors
from keepstep.checkpoint.save import SaveRequest, apply_retention, nothing_waits
from keepstep.checkpoint.stop import StopNotice, waiting_time
from keepstep.checkpoint.work_log import Work, WorkLog
from keepstep.dist.world import World, host_name
from keepstep.errors import ConfigError, SaveError
from keepstep.integrations.hugging_face import contents
from keepstep.integrations.hugging_face.best import best_steps, name_best, named_step, naming_no_best
from keepstep.integrations.hugging_face.capture import Captured, Pool, capturing
from keepstep.integrations.hugging_face.extras import save_extras
from keepstep.integrations.hugging_face.format import as_it_is_loaded
from keepstep.integrations.hugging_face.memory import lacks_memory
from keepstep.integrations.hugging_face.options import Options
from keepstep.integrations.hugging_face.pushes import Pushes
from keepstep.integrations.hugging_face.replaced import replaced
from keepstep.integrations.hugging_face.sharded import ShardedFolders
from keepstep.integrations.hugging_face.starting import Start
from keepstep.plan import layout
from keepstep.storage.save_log import SaveLog
from keepstep.storage.survey import SurveyedCheckpoint

logger = logging.getLogger("keepstep")

# Seconds that a `train()` which ends by an error waits for copies to mirrors.
_IMPATIENCE = 20.0


@dataclass
class _Told:
    """What is done after a commit, for the step that it is of.

    `state`: the trainer's as it was then. `pushes`: whether the Trainer asked for a push; `tells`: the callbacks' turn,
    which comes at once where the Trainer waits for the commit. `best`: the best checkpoint before this save. `work`:
    what was done until it began; `held_until`: when the Trainer went on, where that was before the commit.
    """

    request: SaveRequest
    state: Any
    best: str | None
    work: Work
    held_until: float | None = None
    pushes: bool = False
    tells: bool = False
    is_last: bool = False


class Saves:
    """Saves checkpoints of one trainer. Methods are collective.

    Attributes:
        last_step: the step that was committed last, or that this start went on from.
    """

    def __init__(
        self,
        trainer: Any,
        folder: Path,
        world: World,
        claim: FolderClaim,
        identity: RunIdentity,
        options: Options,
        failed: FailedSaves,
        start: Start,
        mirrors: RunMirrors,
    ) -> None:
        self._trainer, self._folder, self._world, self._claim = trainer, folder, world, claim
        self._identity, self._failed, self._mirrors = identity, failed, mirrors
        self._saver = FolderSaver(world, hang_seconds=options.hang_seconds, timeout_seconds=options.timeout_seconds)
        self._in_background = options.mode == "async" and _can_be_captured(trainer)
        self._sharded = ShardedFolders(world, buffered=self._in_background) if trainer.is_fsdp_enabled else None
        self._pool, self._rules = Pool(), options.rules
        self._told: _Told | None = None
        self._pushes = Pushes(trainer, folder, options.push_timeout_seconds)
        self._work = WorkLog(folder, world)
        self._work.resumed(start.step, claim.attempt)
        self._size = 0
        self._may_tell = True
        self._handed_step: int | None = None
        self._tell_callbacks: Callable[..., Any] = trainer.callback_handler.on_save
        self._last: SaveRequest | None = None
        self.last_step: int | None = start.step or None

    def save(
        self, write: Callable[[Path], None], more: dict[str, Any], loss: Any, *, is_last: bool, push: Callable[[], bool]
    ) -> None:
        """Save the present step, or begin to.

        Args:
            write: lets the Trainer write; given the folder in which it makes `checkpoint-<step>`.
            more: of the order of the data.
            loss: what the loss has summed up since the last log; None where that is not known.
            is_last: no later save makes up for this one.
            push: asked afterwards whether the Trainer wanted to push.

        Raises:
            SaveError: on every rank. Nothing was committed, earlier checkpoints are untouched.
        """
        self._may_tell = False
        self._handed_step = int(self._trainer.state.global_step)
        is_busy = not self._saver.is_over
        work = self._work.save_begins(self._handed_step, is_busy=is_busy)
        try:
            self.wait()
            self._save(work.waited() if is_busy else work, write, more, loss, is_last=is_last, push=push)
        finally:
            self._work.save_ended()

    def _save(
        self,
        work: Work,
        write: Callable[[Path], None],
        more: dict[str, Any],
        loss: Any,
        *,
        is_last: bool,
        push: Callable[[], bool],
    ) -> None:
        request = self._request()
        told = _Told(request, None, self._trainer.state.best_model_checkpoint, work, is_last=is_last)

        def write_all(content: Path, later: Callable[[Callable[[], None]], None]) -> None:
            sharded = nullcontext() if self._sharded is None else self._sharded.saving(later)
            with sharded, naming_no_best(self._trainer.state), as_it_is_loaded(self._trainer):
                write(request.temporary)
            self._complete(request, content, more, loss)
            told.pushes = push()

        if self._in_background and lacks_memory(self._trainer, self._world):
            self._in_background = False
        try:
            if self._in_background:
                self._start(request, write_all)
                told.state, told.tells = copy.copy(self._trainer.state), True
                told.held_until = monotonic()
                self._told = told
                if is_last:
                    self.wait()
                return
            saved = self._saver.save(request, lambda content: write_all(content, _at_once), self._size)
        except SaveError as error:
            self._has_failed(told, error)
            return
        self._has_saved(told, saved, "sync")
        self._may_tell = True

    def hear(self) -> None:
        """Hear how a save in the background has ended, if it has on all ranks. Called after every step."""
        self._work.step_ended(int(self._trainer.state.global_step), is_busy=not self._saver.is_over)
        if self._told is not None and all(self._world.gather(self._saver.is_over)):
            self.wait()

    def wait(self) -> None:
        """Wait for a save under way, and do what follows it. Raises SaveError."""
        told, self._told = self._told, None
        if told is None:
            return
        try:
            saved = self._saver.wait()
        except SaveError as error:
            self._has_failed(told, error)
            return
        if saved is not None:
            self._has_saved(told, saved, "async")

    def _start(self, request: SaveRequest, write_all: Callable[[Path, Any], None]) -> None:
        taken: list[Captured] = []

        def take(content: Path) -> None:
            with capturing(self._pool) as captured:
                write_all(content, captured.later)
            taken.append(captured)

        self._saver.start(request, take, lambda: taken[0].write(), self._size)

    def _complete(self, request: SaveRequest, content: Path, more: dict[str, Any], loss: Any) -> None:
        trainer, world = self._trainer, self._world
        content.mkdir(exist_ok=True)
        name_best(trainer.state, self._folder, request.step)
        if trainer.args.should_save:
            # It was written with the name of the temporary folder, where this is the best one.
            trainer.state.save_to_json(str(content / "trainer_state.json"))
        if self._sharded is None and not self._in_background and trainer.args.should_save:
            held = contents.components_of(path.relative_to(content).as_posix() for path in content.rglob("*"))
            if "model" not in held and not trainer.is_deepspeed_enabled:
                raise ValueError(
                    f"{type(trainer).__name__} has written no weights to {content}: does it write elsewhere?"
                )
        if not trainer.args.save_only_model:
            save_extras(trainer, content, world.rank, more, loss)

    def _has_failed(self, told: _Told, error: SaveError) -> None:
        """What would have been the best checkpoint is not there: the one before stays it. Raises SaveError."""
        state = self._trainer.state
        if named_step(state) == told.request.step:
            state.best_model_checkpoint = told.best
        self._failed.take(error, told.request.step, is_needed=told.is_last)

    @contextmanager
    def telling(self) -> Iterator[None]:
        """While the body trains, `on_save` reaches callbacks only where a checkpoint was committed.

        The Trainer calls it as soon as it has handed a checkpoint over: before that is committed, where it is written
        in the background, and also where it has failed.
        """
        handler = self._trainer.callback_handler
        tell = handler.on_save

        def on_save(args: Any, state: Any, control: Any) -> Any:
            if self._handed_step != state.global_step:
                raise ConfigError(
                    f"step {state.global_step} was saved without keepstep: {type(self._trainer).__name__} has a "
                    "_save_checkpoint of its own that does not call super()._save_checkpoint(model, trial)"
                )
            if self._may_tell:
                return tell(args, state, control)
            control.should_save = False
            return control

        self._tell_callbacks = tell
        with replaced(handler, "on_save", on_save):
            yield

    def _has_saved(self, told: _Told, saved: SavedFolder, mode: str) -> None:
        self._failed.forget()
        self._last = told.request
        self.last_step, self._size = saved.step, saved.size
        self._tell(told, saved, mode)
        self._mirrors.committed(saved.step, forced=told.is_last)
        if told.tells:
            trainer = self._trainer
            self._tell_callbacks(trainer.args, told.state, copy.copy(trainer.control))
        if told.pushes:
            self._pushes.push(told.request.final)

    def _request(self) -> SaveRequest:
        trainer = self._trainer
        step = int(trainer.state.global_step)
        limit = trainer.args.save_total_limit
        number = limit if limit and limit > 0 else None

        def waiting(complete: Collection[SurveyedCheckpoint]) -> Collection[int]:
            return self._mirrors.waiting(complete, number)

        return SaveRequest(
            folder=self._folder,
            step=step,
            claim=self._claim,
            parent=self.last_step,
            resumed=True,
            record=self._identity.record(),
            components=self._components(),
            num_to_keep=number,
            rules=self._rules,
            protected=best_steps(trainer.state),
            naming=layout.TRAINER,
            inner=layout.TRAINER.checkpoint_name(step),
            waiting=waiting if self._mirrors.are_wanted else nothing_waits,
        )

    def _components(self) -> tuple[str, ...]:
        trainer = self._trainer
        if trainer.args.save_only_model:
            return ("model", "trainer")
        held = ["model", "optimizer", "lr_scheduler", "rng", "trainer", "data"]
        if getattr(trainer.accelerator, "scaler", None) is not None:
            held.append("scaler")
        return tuple(held)

    def _tell(self, told: _Told, saved: SavedFolder, mode: str) -> None:
        hosts = self._world.to_main(host_name())
        if self._world.rank:
            return
        request, work = told.request, told.work
        logger.info("saved step %d (%s, %.1f MB, %.2f s)", saved.step, request.final, saved.size / 1e6, saved.seconds)
        SaveLog(self._folder).saved(
            step=saved.step,
            attempt=request.attempt,
            mode=mode,
            seconds=saved.seconds,
            commit_seconds=saved.seconds - saved.write_seconds,
            ranks=[
                {"host": host, "bytes": 0 if rank else saved.size, "write": saved.write_seconds, "sync": 0.0}
                for rank, host in enumerate(hosts)
            ],
            straggler=None,
            work=work.row((told.held_until or monotonic()) - work.began),
        )

    def finish_pushes(self) -> None:
        """Wait for what is being pushed."""
        self._pushes.finish()

    def finish(self, left: Callable[[], float | None], *, stopped: bool) -> None:
        """The end of `train()`: nothing is under way any more. Raises SaveError.

        Args:
            left: how many seconds remain for copies to mirrors; None where nobody knows.
            stopped: it ends on request.
        """
        self.wait()
        self._pushes.finish()
        self._mirrors.close(left)
        # What was being pushed when its turn came has stayed till now.
        if self._last is not None and self._world.rank == 0:
            apply_retention(self._last)
        self._work.ended(stopped=stopped)
        self._world.broadcast(None)

    def close(self) -> None:
        """Give everything back, also after an error: then a save under way is not waited for longer than it takes."""
        if self._told is not None:
            self._told = None
            self._saver.abandon()
        self._mirrors.close(waiting_time(StopNotice(), None, _IMPATIENCE))
        self._pool.release()
        self._pushes.close()


def _at_once(write: Callable[[], None]) -> None:
    write()


def _can_be_captured(trainer: Any) -> bool:
    """Whether the Trainer writes through torch and safetensors alone."""
    if trainer.is_deepspeed_enabled:
        logger.warning("mode async is not for DeepSpeed, which writes by itself: saves are synchronous")
        return False
    return True
