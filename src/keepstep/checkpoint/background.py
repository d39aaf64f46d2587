"""Saves that go on beside the training: one thread, one save at a time, and no outcome gets lost."""

import atexit
import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

logger = logging.getLogger("keepstep")

S = TypeVar("S")


class PendingSave(Generic[S]):
    """A save under way on a thread of its own.

    The thread is no daemon: an interpreter that ends without `close()` waits for it, so that the last save is complete.

    Args:
        step: what is saved.
        work: the save. It may raise; the error is kept until somebody asks.
    """

    def __init__(self, step: int, work: Callable[[], S]) -> None:
        self.step = step
        self._saved: S | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), name=f"keepstep-save-{step}")
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> S:
        """Wait for the end. Raises what the save raised."""
        self._thread.join()
        atexit.unregister(self._tell)
        if self._error is not None:
            raise self._error
        assert self._saved is not None
        return self._saved

    def _run(self, work: Callable[[], S]) -> None:
        try:
            self._saved = work()
        except BaseException as error:  # noqa: BLE001 - it is raised where the outcome is asked for
            self._error = error
            # Runs after this thread, however the process ends; whoever asks takes it back.
            atexit.register(self._tell)

    def _tell(self) -> None:
        logger.error("the save of step %d failed, and nobody has asked for its outcome: %s", self.step, self._error)
