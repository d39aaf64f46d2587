"""One save after the other: in the foreground, or each on a thread of its own."""

import contextlib
import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from time import monotonic
from typing import Any

from keepstep.checkpoint.background import PendingSave
from keepstep.checkpoint.meeting import Meetings, naming_failures
from keepstep.checkpoint.save import ONE_FOLDER, Placing, Saved, SaveRequest, phase_of, save
from keepstep.checkpoint.snapshot import Snapshot, Snapshots
from keepstep.checkpoint.watchdog import watched
from keepstep.dcp.fragments import MetadataParts
from keepstep.dcp.writer import Written
from keepstep.dist.background import LONGEST_SECONDS, BackgroundWorld
from keepstep.dist.world import World, host_name
from keepstep.plan.pace import straggler
from keepstep.state.component import Component
from keepstep.storage.priority import stand_back
from keepstep.storage.save_log import SaveLog
from keepstep.storage.writer import Writer

logger = logging.getLogger("keepstep")

# Saves whose time counts for what the next will take.
_REMEMBERED = 3


class Saver:
    """Saves snapshots, at most one at a time.

    Args:
        components: the parts of the job.
        world: the ranks.
        in_background: the job goes on while its state is written, where memory allows that.
        hang_seconds: a save that takes longer prints where it hangs.
        timeout_seconds: how long a rank that hangs is waited for in the background.
        placing: where files of saves lie.

    Attributes:
        last_step: the step that was saved last; None before.
        last_row: on the main process, its line of `saves.jsonl`.
    """

    def __init__(
        self,
        components: Sequence[Component],
        world: World,
        *,
        in_background: bool,
        hang_seconds: float = 600.0,
        timeout_seconds: float = LONGEST_SECONDS,
        placing: Placing = ONE_FOLDER,
    ) -> None:
        self._world, self._placing = world, placing
        self._hang_seconds = hang_seconds
        self._meetings = Meetings(world, timeout_seconds)
        self._snapshots = Snapshots(components, world, buffered=in_background)
        self._parts = MetadataParts()
        self._writer, self._background_writer = Writer(), Writer(begin_thread=stand_back)
        self._pending: PendingSave[Saved] | None = None
        self._hosts: list[str] = []
        self._has_begun = False
        self._took: deque[float] = deque(maxlen=_REMEMBERED)
        self.last_step: int | None = None
        self.last_row: Mapping[str, Any] | None = None

    @property
    def expected_seconds(self) -> float:
        """How long a save may take, from what the last ones took on this rank; 0 when there was none."""
        return max(self._took, default=0.0)

    def expect(self, seconds: float) -> None:
        """Take from an earlier attempt how long a save took there."""
        self._took.append(seconds)

    @property
    def pending_step(self) -> int | None:
        """The step whose save is under way, or whose outcome nobody has asked for; None when there is none."""
        return None if self._pending is None else self._pending.step

    @property
    def is_over(self) -> bool:
        """Whether no save is under way on this rank."""
        return self._pending is None or self._pending.is_over

    def prepare(self, step: int) -> None:
        """Plan and get memory before the first save is due, so that it costs no more than the others. Collective.

        After a save there is nothing to prepare, and one may be under way in that memory.
        """
        if not self._has_begun:
            self._snapshots.prepare(step, "preparing to save")

    def start(self, request: SaveRequest) -> None:
        """Take a snapshot and save it, or let it be saved. Collective; no save may be under way.

        Raises:
            SaveError: on every rank. Nothing was committed.
        """
        if self._pending is not None:
            raise RuntimeError(f"the save of step {self._pending.step} is under way in the memory of the next one")
        self._has_begun = True
        with self._noting_failures():
            snapshot = self._snapshots.take(request.step, phase_of(request, "snapshot"))
        if not self._hosts:
            self._hosts = self._world.gather(host_name())
        if snapshot.in_memory:
            meeting, held_until = self._meetings.next(), monotonic()
            self._pending = PendingSave(
                request.step, lambda: self._save_in_background(request, snapshot, meeting, held_until)
            )
        else:
            with self._noting_failures():
                self.last_step = self._save(request, snapshot, self._world, self._writer).step

    def skip(self, request: SaveRequest) -> None:
        """Leave a save out since one is under way, visibly. The same decision on all ranks."""
        if self._world.rank == 0:
            logger.warning("step %d is not saved: the save of an earlier step is still under way", request.step)
            SaveLog(request.folder).skipped(request.step, request.attempt)

    def wait(self) -> None:
        """Wait for the save under way, if there is one. Raises its error."""
        if self._pending is None:
            return
        pending = self._pending
        with self._noting_failures():
            try:
                self.last_step = pending.result().step
            finally:
                if pending.is_over:  # an interrupt may have ended the waiting, not the save
                    self._pending = None

    def abandon(self) -> None:
        """This rank ends by an error: do not wait long for ranks that may be gone."""
        self._meetings.hurry()

    def release(self) -> None:
        """Give memory back. The next save takes it anew."""
        if self._pending is None:
            self._snapshots.release()
            self._writer.release()
            self._background_writer.release()

    def _save(
        self, request: SaveRequest, snapshot: Snapshot, world: World, writer: Writer, held_until: float | None = None
    ) -> Saved:
        saved = save(request, snapshot, world, writer, self._parts, self._placing)
        self._took.append(snapshot.seconds + saved.seconds)
        if world.rank == 0:
            self._tell(request, snapshot, saved, monotonic() if held_until is None else held_until)
        return saved

    def _save_in_background(
        self, request: SaveRequest, snapshot: Snapshot, meeting: BackgroundWorld, held_until: float
    ) -> Saved:
        stand_back()
        what = f"saving step {request.step} in the background"
        with naming_failures(request), meeting.beating(), watched(what, self._hang_seconds):
            return self._save(request, snapshot, meeting, self._background_writer, held_until)

    def _tell(self, request: SaveRequest, snapshot: Snapshot, saved: Saved, held_until: float) -> None:
        size = sum(share.size for share in saved.shares)
        slow = straggler([share.seconds["write"] + share.seconds["sync"] for share in saved.shares])
        text = "" if slow is None else f"; rank {slow} ({self._hosts[slow]}) took longest to write"
        logger.info(
            "saved step %d (%s, %.1f MB, %.2f s, the job waited %.2f s%s)",
            saved.step,
            request.final,
            size / 1e6,
            snapshot.seconds + saved.seconds,
            snapshot.seconds if snapshot.in_memory else snapshot.seconds + saved.seconds,
            text,
        )
        work = request.work
        request.before_line()
        self.last_row = SaveLog(request.folder).saved(
            step=saved.step,
            attempt=request.attempt,
            mode="async" if snapshot.in_memory else "sync",
            seconds=saved.seconds,
            commit_seconds=saved.commit_seconds,
            ranks=[
                {"host": host, "bytes": share.size, **_copied(share), **share.seconds}
                for host, share in zip(self._hosts, saved.shares, strict=True)
            ],
            straggler=slow,
            work=None if work is None else work.row(held_until - work.began),
        )

    @contextlib.contextmanager
    def _noting_failures(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._snapshots.forget_told()
            raise


def _copied(share: Written) -> dict[str, int]:
    return {"copied_bytes": share.copied} if share.copied else {}
