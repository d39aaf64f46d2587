"""What lies on the mirrors of a run, on all ranks the same."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from keepstep.config.address import parse_address
from keepstep.config.mirror import MirrorConfig
from keepstep.dist.agree import agreed
from keepstep.dist.world import World
from keepstep.errors import CouldNotLookError, ResumeError
from keepstep.plan.layout import Naming
from keepstep.plan.mirror import Copy
from keepstep.plan.resume import Condition
from keepstep.storage.attempt_marks import attempts_in, attempts_on, read_attempt
from keepstep.storage.line import Line
from keepstep.storage.stored import StoredFiles, survey_store
from keepstep.storage.stores.apart import open_apart

logger = logging.getLogger("keepstep")


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
        partial: uploads that did not end, in words; nobody ever took them for checkpoints.
        damaged: checkpoints that are not complete any more, in words.
        too_new: the newest of a newer version: its step, and in words; None without one.
        line: where the run goes on, as its last attempt has noted there; None where it did not.
    """

    found: tuple[Offer, ...] = ()
    attempt: int = 0
    partial: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    too_new: tuple[int, str] | None = None
    line: Line | None = None

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
    if not mirrors:
        return Offers()
    asked = [mirror for mirror in mirrors if mirror.fetch != "never"]
    attempt = 0
    if world.rank == 0:
        others = [mirror for mirror in mirrors if mirror.fetch == "never"]
        attempt = max((_attempt_on(mirror, prefix_of(mirror)) for mirror in others), default=0)
    found = Offers(attempt=attempt)
    if not asked:
        return world.broadcast(found)
    with agreed(world, f"looking for checkpoints on {', '.join(one.address for one in asked)}", ResumeError):
        if world.rank == 0:
            found = _joined([found, *(_look(mirror, prefix_of(mirror), naming) for mirror in asked)])
    return world.broadcast(found)


def _look(mirror: MirrorConfig, prefix: str, naming: Naming) -> Offers:
    store = open_apart(parse_address(mirror.address))
    try:
        seen = survey_store(store, prefix)
        numbers = attempts_in(seen.notes)
        note = read_attempt(store, prefix, max(numbers)) if numbers else None
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

    def told(condition: Condition) -> tuple[str, ...]:
        return tuple(f"{c.files}: {c.found.problem}" for c in own if c.found.condition is condition)

    newer = [c for c in own if c.found.condition is Condition.TOO_NEW]
    return Offers(
        offers,
        max([0, *numbers, *(offer.copy.attempt for offer in offers)]),
        told(Condition.INCOMPLETE),
        told(Condition.DAMAGED),
        max(((c.found.step, f"{c.files}: {c.found.problem}") for c in newer), default=None),
        note.line if note is not None else None,
    )


def _attempt_on(mirror: MirrorConfig, prefix: str) -> int:
    """The highest attempt on a mirror that is not asked for checkpoints: its number must still be taken. 0 where it
    cannot be asked."""
    try:
        return max(attempts_on(open_apart(parse_address(mirror.address)), prefix), default=0)
    except (OSError, CouldNotLookError) as error:
        logger.warning("could not look which attempts of the run %s knows: %s", mirror.address, error)
        return 0


def _joined(parts: Sequence[Offers]) -> Offers:
    return Offers(
        tuple(offer for part in parts for offer in part.found),
        max((part.attempt for part in parts), default=0),
        tuple(text for part in parts for text in part.partial),
        tuple(text for part in parts for text in part.damaged),
        max((part.too_new for part in parts if part.too_new is not None), default=None),
        max((part.line for part in parts if part.line is not None), key=lambda line: line.attempt, default=None),
    )
