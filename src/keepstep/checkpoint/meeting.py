"""Where the background threads of the ranks meet, save after save."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from torch.distributed import DistError

from keepstep.checkpoint.save import SaveRequest, phase_of
from keepstep.dist.background import BackgroundWorld
from keepstep.dist.mailbox import Mailbox
from keepstep.dist.world import World
from keepstep.errors import RankFailedError, SaveError

# Seconds that a rank which ends by an error waits for others that may be gone.
_IMPATIENCE = 15.0


class Meetings:
    """One meeting for each save.

    Args:
        world: the ranks.
        longest: how long one that hangs is waited for, in seconds.
    """

    def __init__(self, world: World, longest: float) -> None:
        self._world, self._longest = world, longest
        self._mailbox: Mailbox | None = None
        self._last: BackgroundWorld | None = None
        self._number = 0

    def next(self) -> BackgroundWorld:
        """A meeting place for one more save. Collective; the save before is over."""
        if self._mailbox is None:
            self._mailbox = self._world.mailbox(self._world.broadcast(secrets.token_hex(8)))
        if self._last is not None:
            self._last.sweep()
        self._number += 1
        self._last = BackgroundWorld(
            self._world.rank, self._world.size, self._mailbox, f"{self._number}/", longest=self._longest
        )
        return self._last

    def hurry(self) -> None:
        """This rank ends by an error: do not wait long for ranks that may be gone. Not collective."""
        if self._last is not None:
            self._last.patience = min(self._last.patience, _IMPATIENCE)


@contextmanager
def naming_failures(request: SaveRequest) -> Iterator[None]:
    """A meeting that fails in the body is a save that failed. Raises SaveError."""
    try:
        yield
    except SaveError:
        raise
    except (RankFailedError, DistError) as error:
        phase = phase_of(request, "meeting the other ranks")
        text = f"{phase} failed: {error}. Whether it was committed before, only a look into the folder tells"
        raise SaveError(text, rank=getattr(error, "rank", 0), phase=phase) from error
