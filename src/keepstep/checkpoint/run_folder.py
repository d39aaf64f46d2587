"""A run's folder as one attempt of the run sees it: held, described, and left with a note."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path

from keepstep.checkpoint.claim import FolderClaim, claim_folder
from keepstep.checkpoint.damage import put_away
from keepstep.checkpoint.resume import DamagePolicy
from keepstep.config.checkpointing import CheckpointingConfig
from keepstep.dist.agree import agreed
from keepstep.dist.world import World
from keepstep.errors import SaveError, StopRequested
from keepstep.plan import layout
from keepstep.plan.elastic import Launcher, is_restart_after_stop
from keepstep.plan.layout import Naming
from keepstep.plan.run_history import seconds_in
from keepstep.storage.exit_note import asked_to_stop, forget_exit, read_exit, this_launcher, write_exit
from keepstep.storage.save_log import SaveLog

logger = logging.getLogger("keepstep")


class RunFolder:
    """Taken when it is needed, by `take`. All methods are collective but `note_stop` and `forget_note`.

    Args:
        path: the folder.
        world: the ranks.
        claim: the hold on the folder, where the caller has it already; he gives it back.
        naming: how checkpoints are called there.
        taking: takes it, given folder, ranks and the number that the attempt must be above.
    """

    def __init__(
        self,
        path: Path,
        world: World,
        claim: FolderClaim | None = None,
        naming: Naming = layout.NATIVE,
        taking: Callable[[Path, World, int], FolderClaim] = claim_folder,
    ) -> None:
        self.path, self._naming = path, naming
        self._world, self._taking = world, taking
        self._claim, self._is_callers = claim, claim is not None

    def take(self, above: int = 0) -> FolderClaim:
        """Hold the folder, by an attempt with a higher number than `above`. Raises as `claim_folder`."""
        if self._claim is None:
            self._claim = self._taking(self.path, self._world, above)
        return self._claim

    def give_back(self) -> None:
        """Let others have it."""
        if self._claim is not None and not self._is_callers:
            self._claim.release()
            self._claim = None

    def is_lost(self) -> bool:
        """Whether another job was seen to hold it. Only those who hold a lock look."""
        return any(self._world.gather(self._claim is not None and self._claim.is_lost))

    def damage_policy(
        self, config: CheckpointingConfig, repair: Callable[[int, FolderClaim], bool] = lambda step, claim: False
    ) -> DamagePolicy:
        """What becomes of damaged checkpoints. A job that does not hold the folder moves nothing.

        Args:
            config: says it.
            repair: brings a whole copy from elsewhere into the held folder; returns whether there was one.
        """
        stop, full = config.on_damage == "stop", config.verify_on_resume == "full"
        if self._claim is None:
            return DamagePolicy(stop, full)
        claim = self._claim
        away = partial(put_away, self.path, claim, self._world, naming=self._naming)
        return DamagePolicy(stop, full, away, lambda step: repair(step, claim))

    def seconds_of_a_save(self) -> float | None:
        """What the last save of an earlier attempt took; None when it is not known."""
        with agreed(self._world, f"looking how long saves took in {self.path}", SaveError):
            found = seconds_in(SaveLog(self.path).last_saved(), "seconds") if self._world.rank == 0 else None
        return self._world.broadcast(found)

    def was_told_to_stop(self) -> bool:
        """Whether a launcher has started this attempt although the one before was told to stop."""
        with agreed(self._world, f"looking how {self.path} was left"):
            asked = asked_to_stop(read_exit(self.path)) if self._world.rank == 0 else []
        return any(self._world.gather(is_restart_after_stop(self._world.broadcast(asked), this_launcher())))

    def note_stop(
        self, step: int, saved_step: int | None, why_not_saved: str = "", asked: Iterable[Launcher | None] = ()
    ) -> None:
        """Note, on the main process, that this attempt ends by a stop request.

        Args:
            step: completed steps.
            saved_step: the newest that is saved; None when none is.
            why_not_saved: why it is not this one.
            asked: launchers of the ranks that got the signal.
        """
        if self._world.rank or self._claim is None:
            return
        code = StopRequested.exit_code
        launchers = [asdict(one) for one in dict.fromkeys(asked) if one is not None]
        more = {"step": step, "saved_step": saved_step, "not_saved_because": why_not_saved, "asked": launchers}
        try:
            write_exit(self.path, "stopped", code, **more)
        except OSError as error:
            logger.warning("could not note the stop in %s: %s", self.path, error)

    def forget_note(self) -> None:
        """This attempt is at work: how the one before ended says nothing any more."""
        if self._world.rank == 0:
            forget_exit(self.path)
