"""Pushes committed checkpoints to the Hub beside training: the newest one last, and a failure stops nothing."""

import atexit
import functools
import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from keepstep.errors import CheckpointNotFoundError
from keepstep.integrations.hugging_face.hub import LAST, Repository, hub_errors, strategy_of, told
from keepstep.plan import layout
from keepstep.storage.leases import hold
from keepstep.storage.save_log import NAME as SAVE_LOG

logger = logging.getLogger("keepstep")

# What only a resume needs, or describes the checkpoint: it is no part of the model at the repository's root.
_OF_RESUME = (
    "optimizer*",
    "scheduler.pt",
    "scaler.pt",
    "rng_state*",
    "trainer_state.json",
    "keepstep_*",
    layout.MANIFEST,
    layout.RUN_RECORD,
    "README.md",  # PEFT writes an empty one into each checkpoint: the repository's model card stays
    "global_step*/*",
    "latest",
    "zero_to_fp32.py",
    "pytorch_model_fsdp*",
    "*.distcp",
)

# Of a run's folder: everything that is keepstep's, or is under way.
_OWN = (f"{layout.KEEPSTEP_FOLDER}/*", ".checkpoint-*", ".save-*", SAVE_LOG)


def without_own_files(upload_folder: Callable[..., Any]) -> Callable[..., Any]:
    """`upload_folder` of `huggingface_hub`, but of a run's folder it leaves out what is keepstep's."""

    @functools.wraps(upload_folder)
    def upload(*args: Any, **kwargs: Any) -> Any:
        ignored = kwargs.get("ignore_patterns") or []
        kwargs["ignore_patterns"] = [*([ignored] if isinstance(ignored, str) else ignored), *_OWN]
        return upload_folder(*args, **kwargs)

    return upload


# Seconds that the process waits at its end for what an error has left under way.
_AT_EXIT = 60.0


class _Push:
    """A checkpoint that is to be pushed. Nobody deletes it before that."""

    def __init__(self, checkpoint: Path, step: int, strategy: str, held: ExitStack) -> None:
        self.checkpoint, self.step, self.strategy, self._held = checkpoint, step, strategy, held
        self.is_given_up = False
        self.over = threading.Event()
        self.error: BaseException | None = None

    def let_go(self) -> None:
        # A lease that cannot be taken away ends by itself.
        with suppress(OSError):
            self._held.close()


_present: WeakValueDictionary[Path, "Pushes"] = WeakValueDictionary()


class Pushes:
    """Pushes one checkpoint after the other; of several that wait only the newest, where each takes the place of the
    one before.

    Threads: one that waits for work and looks after it, and one for each push, as a request to the Hub may never come
    back. Neither keeps the process from ending.

    Args:
        trainer: says where to, and how.
        folder: the run's folder.
        longest: seconds that a push may take, and that the end of the training waits for what is under way.

    Attributes:
        failed: how many did not get there.
    """

    def __init__(self, trainer: Any, folder: Path, longest: float) -> None:
        self._trainer, self._folder, self._longest = trainer, folder, longest
        self._lock = threading.Condition(threading.RLock())
        self._waiting: list[_Push] = []
        self._current: _Push | None = None
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self.failed = 0
        former = _present.get(folder.resolve())
        if former is not None:
            former.give_up()  # of a `train()` that ended with an error: it is older
        _present[folder.resolve()] = self

    def push(self, checkpoint: Path) -> None:
        """Push what was just committed, as the trainer's `hub_strategy` says. Returns at once."""
        trainer = self._trainer
        strategy = strategy_of(trainer.args)
        step = layout.TRAINER.step_of(checkpoint.name)
        if not trainer.is_world_process_zero() or strategy == "end" or step is None:
            return
        trainer.callback_handler.on_push_begin(trainer.args, trainer.state, trainer.control)
        held = ExitStack()
        try:
            held.enter_context(hold(self._folder, step, naming=layout.TRAINER))
        except (CheckpointNotFoundError, OSError) as error:
            self.failed += 1
            logger.warning("step %d cannot be pushed to the Hub: %s (%d failed)", step, error, self.failed)
            return
        with self._lock:
            if strategy != "all_checkpoints":
                for older in self._waiting:
                    older.let_go()
                self._waiting.clear()
            self._waiting.append(_Push(checkpoint, step, strategy, held))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="keepstep-pushes", daemon=True)
                self._thread.start()
            self._lock.notify_all()

    def finish(self) -> None:
        """Wait, for `push_timeout_seconds` at most, until nothing waits and nothing is under way."""
        with self._lock:
            if self._waiting or self._current:
                logger.info("waiting for pushes to the Hub")
            if self._lock.wait_for(lambda: not self._waiting and not self._current, self._longest):
                return
            steps = [one.step for one in (self._current, *self._waiting) if one is not None]
            self.give_up()
        logger.warning(
            "pushes to the Hub have not ended within %.0f s (push_timeout_seconds): step %s is given up. It is in %s; "
            "Trainer.push_to_hub() pushes the model",
            self._longest,
            ", ".join(map(str, steps)),
            self._folder,
        )

    def close(self) -> None:
        """No more comes. After an error something may be under way: it goes on beside what the process does, and the
        process waits for it a little at its end."""
        with self._lock:
            self._is_closed = True
            if self._waiting or self._current:
                atexit.register(self._finish_at_exit)
            self._lock.notify_all()

    def give_up(self) -> None:
        """Nothing of this may change the repository any more."""
        with self._lock:
            self.failed += len(self._waiting)
            self._give_up()

    def _finish_at_exit(self) -> None:
        self._longest = min(self._longest, _AT_EXIT)
        self.finish()

    def _give_up(self) -> None:
        self._drop_waiting()
        if self._current is not None:
            self._current.is_given_up = True
            self._current.over.set()

    def _drop_waiting(self) -> None:
        for one in self._waiting:
            one.let_go()
        self._waiting.clear()
        self._lock.notify_all()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    atexit.unregister(self._finish_at_exit)
                    return
                push = self._current = self._waiting.pop(0)
            try:
                self._look_after(push)
            finally:
                push.let_go()
                with self._lock:
                    self._current = None
                    self._lock.notify_all()

    def _look_after(self, push: _Push) -> None:
        worker = threading.Thread(target=self._try, args=(push,), name=f"keepstep-push-{push.step}", daemon=True)
        worker.start()
        is_over = push.over.wait(self._longest)
        problem = None if push.error is None else told(push.error)
        if not is_over or push.is_given_up:
            push.is_given_up = True
            problem = f"it has not ended within {self._longest:.0f} s (push_timeout_seconds) and is given up"
        if problem is None:
            return
        self.failed += 1
        logger.warning(
            "could not push step %d to the Hub: %s. Training goes on, the next save tries again (%d failed)",
            push.step,
            problem,
            self.failed,
        )

    def _try(self, push: _Push) -> None:
        # Replaced by what is caught, or by success: an error that nobody thought of must not pass for a push.
        push.error = RuntimeError("the push ended with an error, see above")
        try:
            self._push(push)
            push.error = None
        except hub_errors() as error:
            push.error = error
        finally:
            push.over.set()

    def _push(self, push: _Push) -> None:
        started = time.monotonic()
        repo = Repository(self._trainer)
        files = {
            path.relative_to(push.checkpoint).as_posix(): path
            for path in sorted(push.checkpoint.rglob("*"))
            if path.is_file()
        }
        added = {name: path for name, path in files.items() if not any(fnmatch(name, one) for one in _OF_RESUME)}
        place = {"checkpoint": LAST, "all_checkpoints": push.checkpoint.name}.get(push.strategy)
        if place is not None:
            added |= {f"{place}/{name}": path for name, path in files.items()}
        # One commit: whoever looks sees the checkpoint before, or this one, and no file of both.
        repo.commit(
            f"Training in progress, step {push.step}",
            added,
            lambda name: _goes(name, place, push.step),
            lambda: not push.is_given_up,
        )
        if not push.is_given_up:
            logger.info("pushed step %d to %s (%.1f s)", push.step, repo.name, time.monotonic() - started)


def _goes(name: str, place: str | None, step: int) -> bool:
    """Whether a file there is of the checkpoint before at this place, or of a later step: of a line that was left."""
    folder, _, rest = name.partition("/")
    if not rest or place is None:
        return False
    other = layout.TRAINER.step_of(folder)
    return folder == place or (place != LAST and other is not None and other > step)
