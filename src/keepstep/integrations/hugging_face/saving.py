"""The saves of one `train()`: each in a temporary folder, committed, then rotated and pushed."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keepstep.checkpoint.claim import FolderClaim
from keepstep.checkpoint.failed_saves import FailedSaves
from keepstep.checkpoint.folder_save import SavedFolder, save_folder
from keepstep.checkpoint.identity import RunIdentity
from keepstep.checkpoint.save import SaveRequest
from keepstep.checkpoint.watchdog import watched
from keepstep.dist.world import World, host_name
from keepstep.errors import SaveError
from keepstep.integrations.hugging_face.extras import save_extras
from keepstep.integrations.hugging_face.hub import Pushes
from keepstep.integrations.hugging_face.options import Options
from keepstep.integrations.hugging_face.starting import Start
from keepstep.plan import layout
from keepstep.storage.save_log import SaveLog

logger = logging.getLogger("keepstep")


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
    ) -> None:
        self._trainer, self._folder, self._world, self._claim = trainer, folder, world, claim
        self._identity, self._options, self._failed = identity, options, failed
        self._pushes = Pushes(trainer, folder)
        self._size = 0
        self.last_step: int | None = start.step or None

    def save(
        self, write: Callable[[Path], None], more: dict[str, Any], *, is_last: bool, push: Callable[[], bool]
    ) -> None:
        """Save the present step.

        Args:
            write: lets the Trainer write; given the folder in which it makes `checkpoint-<step>`.
            more: of the order of the data.
            is_last: no later save makes up for this one.
            push: asked afterwards whether the Trainer wanted to push.

        Raises:
            SaveError: on every rank. Nothing was committed, earlier checkpoints are untouched.
        """
        request = self._request()
        try:
            with watched(f"saving step {request.step}", self._options.hang_seconds):
                saved = self._save(request, write, more)
        except SaveError as error:
            self._failed.take(error, request.step, is_needed=is_last)
            return
        self._failed.forget()
        self.last_step, self._size = request.step, saved.size
        self._tell(request, saved)
        if push():
            self._pushes.push(request.final)

    def _save(self, request: SaveRequest, write: Callable[[Path], None], more: dict[str, Any]) -> SavedFolder:
        trainer, world = self._trainer, self._world

        def write_all(content: Path) -> None:
            write(request.temporary)
            if not trainer.args.save_only_model:
                save_extras(trainer, content, world.rank, more)

        def complete(content: Path) -> None:
            # It was written with the name of the temporary folder, where this is the best one.
            self._name_best(request)
            trainer.state.save_to_json(str(content / "trainer_state.json"))

        saved = save_folder(request, write_all, world, complete, self._size)
        self._name_best(request)
        return saved

    def _name_best(self, request: SaveRequest) -> None:
        state = self._trainer.state
        best = state.best_model_checkpoint
        if best is not None and Path(best).parent == request.temporary:
            state.best_model_checkpoint = str(self._folder / Path(best).name)

    def _request(self) -> SaveRequest:
        trainer = self._trainer
        step = int(trainer.state.global_step)
        limit = trainer.args.save_total_limit
        return SaveRequest(
            folder=self._folder,
            step=step,
            claim=self._claim,
            parent=self.last_step,
            resumed=True,
            record=self._identity.record(),
            components=self._components(),
            num_to_keep=limit if limit and limit > 0 else None,
            protected=self._best_step(),
            naming=layout.TRAINER,
            inner=layout.TRAINER.checkpoint_name(step),
        )

    def _best_step(self) -> tuple[int, ...]:
        state = self._trainer.state
        named = layout.TRAINER.step_of(Path(state.best_model_checkpoint).name) if state.best_model_checkpoint else None
        known = getattr(state, "best_global_step", None)
        return tuple({int(step) for step in (named, known) if step})

    def _components(self) -> tuple[str, ...]:
        trainer = self._trainer
        if trainer.args.save_only_model:
            return ("model", "trainer")
        held = ["model", "optimizer", "lr_scheduler", "rng", "trainer", "data"]
        if getattr(trainer.accelerator, "scaler", None) is not None:
            held.append("scaler")
        return tuple(held)

    def _tell(self, request: SaveRequest, saved: SavedFolder) -> None:
        hosts = self._world.to_main(host_name())
        if self._world.rank:
            return
        logger.info("saved step %d (%s, %.1f MB, %.2f s)", saved.step, request.final, saved.size / 1e6, saved.seconds)
        SaveLog(self._folder).saved(
            step=saved.step,
            attempt=request.attempt,
            mode="sync",
            seconds=saved.seconds,
            commit_seconds=saved.seconds - saved.write_seconds,
            ranks=[
                {"host": host, "bytes": 0 if rank else saved.size, "write": saved.write_seconds, "sync": 0.0}
                for rank, host in enumerate(hosts)
            ],
            straggler=None,
        )

    def hear(self) -> None:
        """Hear how a save in the background has ended, if one has."""

    def finish_pushes(self) -> None:
        """Wait for what is being pushed."""
        self._pushes.finish()

    def finish(self) -> None:
        """The end of `train()`: nothing is under way any more."""
        self._pushes.finish()

    def close(self) -> None:
        """Give everything back, also after an error."""
        self._pushes.close()
