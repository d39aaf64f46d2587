"""The ranks of a job as their background threads meet: through messages, with bounded waits, without collectives."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from keepstep.dist.mailbox import Mailbox
from keepstep.errors import RankFailedError

T = TypeVar("T")
# A rank says every second that its process lives; one that says nothing for so long is taken for gone.
PATIENCE_SECONDS = 30.0
_BEAT_SECONDS = 1.0
# A process whose write hangs lives all the same.
LONGEST_SECONDS = 7200.0


class BackgroundWorld:
    """A `World` over a mailbox. The main process collects and hands out.

    Args:
        rank, size: as of the world that it stands for.
        mailbox: shared by the ranks.
        prefix: of this meeting's messages.
        patience: seconds without a sign of life after which a rank is taken for gone.
        longest: seconds that one which lives, and hangs, is waited for.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        mailbox: Mailbox,
        prefix: str = "",
        patience: float | None = None,
        longest: float = LONGEST_SECONDS,
    ) -> None:
        self.rank, self.size = rank, size
        self._longest = longest
        self._mailbox, self._prefix = mailbox, prefix
        self.patience = PATIENCE_SECONDS if patience is None else patience
        self._round = 0

    def gather(self, value: T) -> list[T]:
        return self.broadcast(self.to_main(value))

    def broadcast(self, value: T) -> T:
        self._round += 1
        if self.size == 1:
            return value
        if self.rank:
            return self._await(f"{self._round}/all", 0)[0]  # type: ignore[no-any-return]
        self._mailbox.put(f"{self._prefix}{self._round}/all", [value])
        return value

    def to_main(self, value: T) -> list[T]:
        self._round += 1
        if self.rank:
            self._mailbox.put(f"{self._prefix}{self._round}/{self.rank}", [value])
            return []
        values = [value]
        for rank in range(1, self.size):
            values.append(self._await(f"{self._round}/{rank}", rank)[0])
            self._mailbox.clear(f"{self._prefix}{self._round}/{rank}")
        # Who has sent this has read all that was handed out before.
        for earlier in (self._round - 1, self._round - 2):
            if self.size > 1 and earlier > 0:
                self._mailbox.clear(f"{self._prefix}{earlier}/all")
        return values

    def from_main(self, values: list[T]) -> T:
        return self.broadcast(values)[self.rank]

    def mailbox(self, name: str) -> Mailbox:
        return self._mailbox

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Let the others know that this process lives, however long a write or a sync takes."""
        if self.size == 1:
            yield
            return
        over = threading.Event()

        def beat() -> None:
            beats = 0
            while not over.wait(_BEAT_SECONDS if beats else 0.0):
                beats += 1
                try:
                    self._mailbox.put(f"{self._prefix}alive/{self.rank}", beats)
                except RuntimeError:
                    return  # the store is gone: whoever waits for a message finds out

        thread = threading.Thread(target=beat, name="keepstep-beat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def sweep(self) -> None:
        """Take away what is left of a meeting that is over on all ranks."""
        if self.rank == 0 and self.size > 1:
            left = [f"{number}/all" for number in (self._round - 1, self._round)]
            for name in (*left, *(f"alive/{rank}" for rank in range(self.size))):
                self._mailbox.clear(self._prefix + name)

    def _await(self, name: str, rank: int) -> Any:
        """Wait for a message of a rank as long as that gives signs of life."""
        started = time.monotonic()
        heard, last = started, None
        while True:
            message = self._mailbox.wait(self._prefix + name, _BEAT_SECONDS)
            if message is not None:
                return message
            life = self._mailbox.wait(f"{self._prefix}alive/{rank}", 0.0)
            if life != last:
                heard, last = time.monotonic(), life
            if time.monotonic() - heard > self.patience:
                text = f"rank {rank} has given no sign of life for {self.patience:.0f} s"
                raise RankFailedError(text, rank=rank, phase="waiting for a rank")
            if time.monotonic() - started > self._longest:
                text = f"rank {rank} lives, and has not answered for {self._longest:.0f} s: it hangs"
                raise RankFailedError(text, rank=rank, phase="waiting for a rank")
