"""The uploads of one attempt of a run: a process for each mirror, and what retention must spare for them."""

import logging
import time
from collections.abc import Callable, Collection, Sequence

from keepstep.checkpoint.mirrors.beside import Beside, Work
from keepstep.plan.mirror import Copy, due_uploads, waiting
from keepstep.storage.survey import SurveyedCheckpoint

logger = logging.getLogger("keepstep")

# So much of the time that is left goes to what a job does after it has waited.
_MARGIN_SECONDS = 2.0


class Uploads:
    """Lives on the main process.

    Args:
        works: what goes where.
        known: for each, what is known to be there.
    """

    def __init__(self, works: Sequence[Work], known: Sequence[Collection[Copy]]) -> None:
        self._beside = [Beside(work, copies) for work, copies in zip(works, known, strict=True)]
        self._forced: set[int] = set()
        self._given_up: set[tuple[str, int]] = set()

    @property
    def failures(self) -> int:
        """Uploads that failed so far, and starts of processes."""
        return sum(one.failures for one in self._beside)

    def committed(self, step: int, *, forced: bool) -> None:
        """A checkpoint was committed. `forced`: it is copied whatever the period."""
        if forced:
            self._forced.add(step)
        for one in self._beside:
            one.committed(step, forced=forced)

    def waiting(self, complete: Collection[SurveyedCheckpoint], num_to_keep: int | None) -> frozenset[int]:
        """Steps of checkpoints that retention must leave where they are, also after `close`. On any thread."""
        local = {copy_of(one) for one in complete}
        steps: set[int] = set()
        for one in self._beside:
            mirror, mirrored = one.work.mirror, one.mirrored
            if one.is_lost and not mirror.require:
                continue
            due = due_uploads(local, mirrored, mirror.period_steps, self._forced, mirror.num_to_keep)
            held, given_up = waiting(due, mirrored, num_to_keep, mirror.max_waiting, require=mirror.require)
            steps |= held
            for step in given_up:
                self._tell_given_up(mirror.address, step)
        return frozenset(steps)

    def _tell_given_up(self, address: str, step: int) -> None:
        if (address, step) not in self._given_up:
            self._given_up.add((address, step))
            logger.warning(
                "step %d is deleted before it was copied to %s: uploads are slower than saves, or fail. Raise the "
                "mirror's period_steps, or max_waiting",
                step,
                address,
            )

    def close(self, seconds_left: Callable[[], float | None] = lambda: None) -> None:
        """Wait for what is due, each mirror as long as it is configured, and end the processes, whatever happens.

        Args:
            seconds_left: asked again and again: until the wait has to be over; None where nobody knows.
        """
        began = time.monotonic()

        def left(most: float) -> float:
            bound = seconds_left()
            mine = most - (time.monotonic() - began)
            return mine if bound is None else min(mine, bound - _MARGIN_SECONDS)

        try:
            for one in self._beside:
                one.say_finish()  # all of them at once; then each is waited for
            for one in self._beside:
                mirror = one.work.mirror
                if one.finish(lambda most=mirror.wait_seconds: left(most)) or one.is_lost:  # type: ignore[misc]
                    continue
                logger.warning(
                    "not all checkpoints are on %s (waited %.0f s). They stay here, and are copied by the next attempt "
                    "of this run, or by hand: keepstep push %s %s%s",
                    mirror.address,
                    time.monotonic() - began,
                    one.work.folder,
                    mirror.address,
                    "" if one.work.prefix else " --no-name",
                )
        finally:
            for one in self._beside:
                one.close()


def copy_of(checkpoint: SurveyedCheckpoint) -> Copy:
    """What a checkpoint in a folder is."""
    return Copy(checkpoint.found.step, checkpoint.manifest.attempt if checkpoint.manifest else 0)
