"""Saves of folders that others write, one after the other: in the foreground, or each on a thread of its own."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from keepstep.checkpoint.background import PendingSave
from keepstep.checkpoint.folder_save import SavedFolder, begin_folder, discarding, end_folder, save_folder
from keepstep.checkpoint.meeting import Meetings, naming_failures
from keepstep.checkpoint.save import SaveRequest, phase_of
from keepstep.checkpoint.watchdog import watched
from keepstep.dist.agree import agreed
from keepstep.dist.world import World
from keepstep.errors import SaveError
from keepstep.storage.priority import stand_back


class FolderSaver:
    """At most one save at a time. Methods are collective, but for `is_over` and `abandon`.

    Args:
        world: the ranks.
        hang_seconds: a save that takes longer prints where it hangs.
        timeout_seconds: how long a rank that hangs is waited for in the background.
    """

    def __init__(self, world: World, *, hang_seconds: float, timeout_seconds: float) -> None:
        self._world = world
        self._hang_seconds = hang_seconds
        self._meetings = Meetings(world, timeout_seconds)
        self._pending: PendingSave[SavedFolder] | None = None

    @property
    def is_over(self) -> bool:
        """Whether no save is under way on this rank."""
        return self._pending is None or self._pending.is_over

    def save(self, request: SaveRequest, write: Callable[[Path], None], size: int) -> SavedFolder:
        """Save now, and wait. Arguments and errors as of `save_folder`."""
        with watched(f"saving step {request.step}", self._hang_seconds):
            return save_folder(request, write, self._world, size=size)

    def start(self, request: SaveRequest, take: Callable[[Path], None], write: Callable[[], None], size: int) -> None:
        """Take a snapshot now, and let it be written and committed beside the job. No save may be under way.

        Args:
            request: what is saved where.
            take: called on all ranks, now, with the folder that becomes the checkpoint; what it writes is small.
            write: called on all ranks, on the other thread: writes the rest.
            size: as of `save_folder`.

        Raises:
            SaveError: on every rank, naming the rank that failed. Nothing was committed.
        """
        if self._pending is not None:
            raise RuntimeError(f"the save of step {self._pending.step} is under way")
        started = time.monotonic()
        with discarding(request, self._world):
            begin_folder(request, self._world, size)
            with agreed(self._world, phase_of(request, "taking a snapshot"), SaveError):
                take(request.content)
        meeting = self._meetings.next()

        def work() -> SavedFolder:
            stand_back()
            what = f"saving step {request.step} in the background"
            with (
                naming_failures(request),
                meeting.beating(),
                watched(what, self._hang_seconds),
                discarding(request, meeting),
            ):
                with agreed(meeting, phase_of(request, "writing"), SaveError):
                    write()
                return end_folder(request, meeting, started, time.monotonic() - started)

        self._pending = PendingSave(request.step, work)

    def wait(self) -> SavedFolder | None:
        """Wait for the save under way; None when there is none. Raises its error."""
        if self._pending is None:
            return None
        pending = self._pending
        try:
            return pending.result()
        finally:
            if pending.is_over:  # an interrupt may have ended the waiting, not the save
                self._pending = None

    def abandon(self) -> None:
        """This rank ends by an error: do not wait long for ranks that may be gone."""
        self._meetings.hurry()
        with suppress(SaveError):
            self.wait()
