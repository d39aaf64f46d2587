"""Holds back from retention what waits for a watcher, also while that is busy with one checkpoint."""

import logging
import threading
from collections.abc import Callable

from keepstep.errors import CouldNotLookError
from keepstep.ops.scoring.places import Place
from keepstep.plan.watch import WatchPlan, plan_holds

logger = logging.getLogger("keepstep")

# Leases are good for a minute; a hold is said again within a quarter of that.
_MOST_SECONDS = 15.0


class Holding:
    """From `start` to `end` a thread looks again and again, and holds what comes next within a budget.

    Args:
        place: where checkpoints are.
        look: what is to be scored.
        budget: bytes that held checkpoints may take together; 0: nothing is held.
        every_seconds: between two looks.
    """

    def __init__(self, place: Place, look: Callable[[], WatchPlan], budget: int, every_seconds: float) -> None:
        self._place, self._look, self._budget = place, look, budget
        self._every = min(every_seconds, _MOST_SECONDS)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="keepstep-hold", daemon=True)

    def start(self) -> None:
        """Hold what is there now, and go on in the background."""
        if self._budget:
            self.refresh()
            self._thread.start()

    def refresh(self) -> None:
        """Look once. Raises CouldNotLookError."""
        self.follow(self._look())

    def follow(self, plan: WatchPlan) -> None:
        """Hold what this plan has not scored yet."""
        if self._budget:
            self._place.hold(plan_holds(plan.unscored, self._budget))

    def end(self) -> None:
        """Hold nothing any more."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
            self._place.hold(())

    def _work(self) -> None:
        while not self._over.wait(self._every):
            try:
                self.refresh()
            except CouldNotLookError as error:
                logger.debug("what waits is not held: %s", error)  # the watcher's own look tells
