"""Pushes committed checkpoints to the Hub beside training: the newest one last, and a failure stops nothing."""

import logging
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from keepstep.errors import CheckpointNotFoundError
from keepstep.integrations.hugging_face.hub import LAST, Repository
from keepstep.plan import layout
from keepstep.storage.leases import hold

logger = logging.getLogger("keepstep")

# What only a resume needs: it is no part of the model at the repository's root.
_OF_RESUME = (
    "optimizer*",
    "scheduler.pt",
    "scaler.pt",
    "rng_state*",
    "trainer_state.json",
    "keepstep_*",
    "manifest.json",
    "global_step*/**",
    "pytorch_model_fsdp*",
    "pytorch_model_fsdp*/**",
)


class _Waiting:
    """A checkpoint that is to be pushed. Nobody deletes it before that."""

    def __init__(self, checkpoint: Path, step: int, message: str, strategy: str, held: ExitStack) -> None:
        self.checkpoint, self.step, self.message, self.strategy, self.held = checkpoint, step, message, strategy, held


class Pushes:
    """One thread that pushes one checkpoint after the other; of several that wait only the newest, where each takes the
    place of the one before.

    Args:
        trainer: says where to, and how.
        folder: the run's folder.
        longest: seconds that the end of the training waits for what is under way.

    Attributes:
        failed: how many did not get there.
    """

    def __init__(self, trainer: Any, folder: Path, longest: float = 600.0) -> None:
        self._trainer, self._folder, self._longest = trainer, folder, longest
        self._lock = threading.Condition()
        self._waiting: list[_Waiting] = []
        self._is_busy = False
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self.failed = 0

    def push(self, checkpoint: Path) -> None:
        """Push what was just committed, as the trainer's `hub_strategy` says. Returns at once."""
        trainer = self._trainer
        strategy = str(getattr(trainer.args.hub_strategy, "value", trainer.args.hub_strategy))
        step = layout.TRAINER.step_of(checkpoint.name)
        if not trainer.is_world_process_zero() or strategy == "end" or step is None:
            return
        trainer.callback_handler.on_push_begin(trainer.args, trainer.state, trainer.control)
        held = ExitStack()
        try:
            held.enter_context(hold(self._folder, step, naming=layout.TRAINER))
        except CheckpointNotFoundError:
            logger.warning("%s is gone before it could be pushed", checkpoint)
            return
        waiting = _Waiting(checkpoint, step, f"Training in progress, step {step}", strategy, held)
        with self._lock:
            if strategy != "all_checkpoints":
                for older in self._waiting:
                    older.held.close()
                self._waiting.clear()
            self._waiting.append(waiting)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="keepstep-push", daemon=True)
                self._thread.start()
            self._lock.notify_all()

    def finish(self) -> None:
        """Wait, not for ever, until nothing waits and nothing is under way."""
        with self._lock:
            if self._waiting or self._is_busy:
                logger.info("waiting for pushes to the Hub")
            if not self._lock.wait_for(lambda: not self._waiting and not self._is_busy, self._longest):
                logger.warning("a push to the Hub has not ended within %.0f s: it is left alone", self._longest)

    def close(self) -> None:
        """End the thread when what it does is done, and give back what is held."""
        with self._lock:
            self._is_closed = True
            for one in self._waiting:
                one.held.close()
            self._waiting.clear()
            self._lock.notify_all()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                waiting = self._waiting.pop(0)
                self._is_busy = True
            try:
                self._push(waiting)
            except (OSError, ValueError, RuntimeError) as error:
                self.failed += 1
                logger.warning(
                    "could not push step %d to the Hub (%s). Training goes on, the next save tries again (%d failed)",
                    waiting.step,
                    error,
                    self.failed,
                )
            finally:
                waiting.held.close()
                with self._lock:
                    self._is_busy = False
                    self._lock.notify_all()

    def _push(self, waiting: _Waiting) -> None:
        repo = Repository(self._trainer)
        common: dict[str, Any] = {
            "repo_id": repo.name,
            "folder_path": str(waiting.checkpoint),
            "revision": repo.revision,
        }
        if waiting.strategy in ("checkpoint", "all_checkpoints"):
            place = LAST if waiting.strategy == "checkpoint" else waiting.checkpoint.name
            # One commit: whoever looks sees the checkpoint before, or this one, and no file of both.
            repo.api.upload_folder(
                **common,
                path_in_repo=place,
                delete_patterns=["*", "**"],
                commit_message=f"{waiting.message}, checkpoint",
            )
        repo.api.upload_folder(**common, ignore_patterns=list(_OF_RESUME), commit_message=waiting.message)
        logger.info("pushed step %d to %s", waiting.step, repo.name)
