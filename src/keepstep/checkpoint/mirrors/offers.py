"""What lies on the mirrors of a run, on all ranks the same."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from keepstep.config.address import parse_address
from keepstep.config.mirror import MirrorConfig
from keepstep.dist.agree import agreed
from keepstep.dist.world import World
from keepstep.errors import CouldNotLookError, ResumeError
from keepstep.plan.layout import Naming
from keepstep.plan.mirror import Copy
from keepstep.plan.resume import Condition
from keepstep.storage.stored import StoredFiles, survey_store
from keepstep.storage.stores.apart import open_apart

_ATTEMPTS = "attempts/"


@dataclass(frozen=True)
class Offer:
    """A complete checkpoint on a mirror.

    Attributes:
        copy: which.
        mirror: the configuration of that mirror.
        prefix: where it lies below the mirror's address.
        size: bytes.
    """

    copy: Copy
    mirror: MirrorConfig
    prefix: str
    size: int

    def files(self) -> StoredFiles:
        """The means to read it."""
        return StoredFiles(open_apart(parse_address(self.mirror.address)), self.prefix)

    def __str__(self) -> str:
        return f"{self.mirror.address}/{self.prefix}"


@dataclass(frozen=True)
class Offers:
    """What the mirrors hold.

    Attributes:
        found: all complete checkpoints, in the order of the mirrors.
        attempt: the highest attempt that has left a trace on any mirror; 0 where none has.
        ignored: what looks like a checkpoint there and is none, in words.
    """

    found: tuple[Offer, ...] = ()
    attempt: int = 0
    ignored: tuple[str, ...] = ()

    @property
    def copies(self) -> frozenset[Copy]:
        return frozenset(offer.copy for offer in self.found)

    def of(self, copy: Copy) -> tuple[Offer, ...]:
        """Where a checkpoint lies."""
        return tuple(offer for offer in self.found if offer.copy == copy)


def look_at_mirrors(
    mirrors: Sequence[MirrorConfig], prefix_of: Callable[[MirrorConfig], str], naming: Naming, world: World
) -> Offers:
    """List all mirrors. Collective; the main process asks.

    Args:
        mirrors: those of the job; `fetch: never` is not asked.
        prefix_of: the run's folder below the address of each.
        naming: how checkpoints are called there.
        world: the ranks.

    Raises:
        ResumeError: on all ranks: one of them cannot be asked. That is never taken for an empty one.
    """
    asked = [mirror for mirror in mirrors if mirror.fetch != "never"]
    if not asked:
        return Offers()
    found = Offers()
    with agreed(world, f"looking for checkpoints on {', '.join(one.address for one in asked)}", ResumeError):
        if world.rank == 0:
            found = _joined([_look(mirror, prefix_of(mirror), naming) for mirror in asked])
    return world.broadcast(found)


def _look(mirror: MirrorConfig, prefix: str, naming: Naming) -> Offers:
    try:
        seen = survey_store(open_apart(parse_address(mirror.address)), prefix)
    except CouldNotLookError as error:
        raise CouldNotLookError(
            f"{error}. It may hold a newer checkpoint than save_dir does: mend the connection or the credentials, or "
            "set fetch: never for this mirror to go on with what is in save_dir"
        ) from None
    own = [c for c in seen.checkpoints if naming.step_of(c.files.name) is not None]
    offers = tuple(
        Offer(Copy(c.found.step, c.manifest.attempt), mirror, c.files.prefix, c.manifest.size)
        for c in own
        if c.manifest is not None and c.found.condition is Condition.COMPLETE
    )
    ignored = tuple(f"{c.files}: {c.found.problem}" for c in own if c.found.condition is not Condition.COMPLETE)
    numbers = [int(n) for n in _numbers(seen.notes)]
    return Offers(offers, max([0, *numbers, *(offer.copy.attempt for offer in offers)]), ignored)


def _numbers(notes: Collection[str]) -> list[str]:
    parts = (note.removeprefix(_ATTEMPTS).partition("/")[0] for note in notes if note.startswith(_ATTEMPTS))
    return [part for part in parts if part.isascii() and part.isdecimal()]


def _joined(parts: Sequence[Offers]) -> Offers:
    return Offers(
        tuple(offer for part in parts for offer in part.found),
        max((part.attempt for part in parts), default=0),
        tuple(text for part in parts for text in part.ignored),
    )
