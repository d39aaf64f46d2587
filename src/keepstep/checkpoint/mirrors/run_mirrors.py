"""All mirrors of a run: where a resume may take checkpoints from, and where committed ones go. Failures of mirrors
never stop a job that runs; at its start a mirror that cannot be asked is an error."""

import logging
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from keepstep.checkpoint.claim import FolderClaim
from keepstep.checkpoint.mirrors.beside import Beside, Work
from keepstep.checkpoint.mirrors.fetching import fetch, look_into
from keepstep.checkpoint.mirrors.offers import Offers, look_at_mirrors
from keepstep.checkpoint.resume import Elsewhere
from keepstep.config.address import parse_address
from keepstep.config.mirror import MirrorConfig
from keepstep.dist.agree import agreed
from keepstep.dist.world import World, host_name
from keepstep.errors import CouldNotLookError, ResumeError
from keepstep.plan import layout
from keepstep.plan.layout import Naming
from keepstep.plan.mirror import Copy, choose_fetches, due_uploads, left_behind, waiting
from keepstep.storage.line import Line, is_left, note_line, read_line
from keepstep.storage.process import this_process
from keepstep.storage.survey import SurveyedCheckpoint, survey

logger = logging.getLogger("keepstep")

# A killed job's log must hold that a stop left uploads behind: so much of the grace is left for it.
_MARGIN_SECONDS = 2.0


class RunMirrors:
    """The mirrors of one run. Methods are collective but for `waiting`, `committed`, `failures` and `close`.

    Args:
        mirrors: as configured.
        folder: the run's folder.
        prefix: of the run, below each mirror's address: its name.
        world: the ranks.
        naming: how checkpoints are called. A Trainer has a repository of the Hub to itself: `hf://user/repo` is its
            run.
    """

    def __init__(
        self,
        mirrors: Sequence[MirrorConfig],
        folder: Path,
        prefix: str,
        world: World,
        naming: Naming = layout.NATIVE,
    ) -> None:
        self._mirrors, self._folder, self._prefix, self._naming = tuple(mirrors), folder, prefix, naming
        self._world = world
        self._offers = Offers()
        self._beside: list[Beside] = []
        self._forced: set[int] = set()
        self._given_up: set[tuple[str, int]] = set()

    @property
    def attempt(self) -> int:
        """The highest attempt of the run that has left a trace on a mirror."""
        return self._offers.attempt

    @property
    def failures(self) -> int:
        """Uploads that failed so far; counted on the main process."""
        return sum(one.failures for one in self._beside)

    def glance(self) -> None:
        """Learn which attempts of the run have left traces, where a job saves without a resume."""
        try:
            self._offers = look_at_mirrors(self._mirrors, self._prefix_of, self._naming, self._world)
        except (ResumeError, CouldNotLookError) as error:
            self._warn(str(error))

    def bring(
        self,
        take: Callable[[], FolderClaim] | None,
        requested: int | None = None,
        guard: Callable[[Elsewhere], None] = lambda one: None,
        whole_from: int | None = None,
    ) -> tuple[Elsewhere, ...]:
        """Fetch the checkpoint to resume from, if a mirror has one that is newer than all in the folder.

        Args:
            take: takes the folder; None where nothing may be written to it.
            requested: the step that was asked for; None for the newest.
            guard: called on all ranks with what is to be fetched next; raises where that must not be.
            whole_from: from this step on checkpoints are fetched whole, whatever is configured.

        Returns:
            Checkpoints to read where they lie (`fetch: ranges`), the newest first; empty where what is wanted is in
            the folder.

        Raises:
            ResumeError: a mirror cannot be asked.
            GuardRefusedError: what is there is of a run that was begun with something else.
        """
        if not self._mirrors:
            return ()
        self._offers = look_at_mirrors(self._mirrors, self._prefix_of, self._naming, self._world)
        if self._world.rank == 0:
            for text in self._offers.ignored:
                logger.warning("ignored %s", text)
        local, offered = self._present()
        fetches = choose_fetches(local, offered, requested)
        remote: list[Elsewhere] = []
        for copy in fetches:
            for offer in self._offers.of(copy):
                looked = look_into(offer, self._world)
                if looked.manifest is None or looked.problem:
                    self._warn(f"{offer} is damaged: {looked.problem}")
                    continue
                one = Elsewhere(copy.step, looked.manifest, str(offer), offer.files, looked.record)
                is_wanted_whole = whole_from is not None and copy.step >= whole_from
                if take is None or (offer.mirror.fetch == "ranges" and not is_wanted_whole):
                    remote.append(one)
                    break
                guard(one)
                claim = take()
                if left_behind(local, copy):
                    self._leave_line(copy, claim)
                problem = fetch(looked, self._folder, claim, self._naming, self._world)
                if not problem:
                    return tuple(remote)
                self._warn(f"{problem}; trying another copy, or the checkpoint before it")
        return tuple(remote)

    def repair(self, step: int, claim: FolderClaim) -> bool:
        """Fetch a checkpoint whose copy here is damaged, and was put away. Returns whether it is whole here now.

        Raises as `bring`.
        """
        copies = [copy for copy in self._offers.copies if copy.step == step]
        for copy in sorted(copies, reverse=True):
            for offer in self._offers.of(copy):
                looked = look_into(offer, self._world)
                problem = fetch(looked, self._folder, claim, self._naming, self._world)
                if not problem:
                    self._warn(f"step {step} was damaged here, and was repaired from {offer}")
                    return True
                self._warn(f"{offer} is damaged as well: {problem}")
        return False

    def start(self, claim: FolderClaim) -> None:
        """Let checkpoints be copied from now on, beside the job."""
        if self._world.rank or self._beside:
            return
        process = this_process()
        holder = f"process {process.pid} on {host_name()}, begun {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}"
        self._beside = [
            Beside(
                Work(one, self._folder, self._prefix_of(one), claim.attempt, holder, self._naming),
                [offer.copy for offer in self._offers.found if offer.mirror == one],
            )
            for one in self._mirrors
        ]

    def committed(self, step: int, *, forced: bool = False) -> None:
        """A checkpoint was committed. `forced`: it is copied whatever the period."""
        if forced:
            self._forced.add(step)
        for one in self._beside:
            one.committed(step, forced=forced)

    def waiting(self, complete: Collection[SurveyedCheckpoint], num_to_keep: int | None) -> frozenset[int]:
        """Steps of checkpoints that retention must leave where they are. May be called on any thread."""
        local = {_copy(one) for one in complete}
        steps: set[int] = set()
        for one in self._beside:
            if one.is_lost:
                continue
            mirror, mirrored = one.work.mirror, one.mirrored
            due = due_uploads(local, mirrored, mirror.period_steps, self._forced, mirror.num_to_keep)
            held, given_up = waiting(due, mirrored, num_to_keep, mirror.max_waiting, require=mirror.require)
            steps |= held
            for step in given_up:
                if (mirror.address, step) not in self._given_up:
                    self._given_up.add((mirror.address, step))
                    logger.warning(
                        "step %d is deleted before it was copied to %s: uploads are slower than saves. Raise the "
                        "mirror's period_steps, or max_waiting",
                        step,
                        mirror.address,
                    )
        return frozenset(steps)

    @property
    def are_used(self) -> bool:
        """Whether checkpoints are copied somewhere, as far as this process does that."""
        return bool(self._beside)

    def _prefix_of(self, mirror: MirrorConfig) -> str:
        address = parse_address(mirror.address)
        is_own = self._naming is layout.TRAINER and address.scheme == "hf" and not address.path
        return "" if is_own else self._prefix

    def close(self, seconds_left: float | None = None) -> None:
        """Wait for uploads, each mirror as long as it is configured, and end them.

        Args:
            seconds_left: until this process has to be gone; None where nobody knows.
        """
        beside, self._beside = self._beside, []
        began = time.monotonic()
        for one in beside:
            one.say_finish()  # all of them at once; then each is waited for
        for one in beside:
            most = one.work.mirror.wait_seconds
            if seconds_left is not None:
                most = min(most, seconds_left - _MARGIN_SECONDS)
            if one.finish(max(0.0, most - (time.monotonic() - began))) or one.is_lost:
                continue
            logger.warning(
                "not all checkpoints are on %s (waited %.0f s): the next start goes on with them; by hand: keepstep "
                "push %s %s%s",
                one.work.mirror.address,
                time.monotonic() - began,
                self._folder,
                one.work.mirror.address,
                "" if one.work.prefix else " --no-name",
            )

    def _present(self) -> tuple[frozenset[Copy], frozenset[Copy]]:
        """Complete checkpoints here and on mirrors, without those of lines of the run that were left."""
        found: tuple[frozenset[Copy], frozenset[Copy]] = (frozenset(), frozenset())
        with agreed(self._world, f"looking for checkpoints in {self._folder}", ResumeError):
            if self._world.rank == 0:
                line = read_line(self._folder)
                local = (_copy(c) for c in survey(self._folder, self._naming).complete)
                found = tuple(  # type: ignore[assignment]
                    frozenset(copy for copy in copies if not is_left(line, copy.step, copy.attempt))
                    for copies in (local, self._offers.copies)
                )
        return self._world.broadcast(found)

    def _leave_line(self, copy: Copy, claim: FolderClaim) -> None:
        with agreed(self._world, f"noting where the run goes on in {self._folder}", ResumeError):
            if self._world.rank == 0:
                note_line(self._folder, Line(copy.step, claim.attempt))

    def _warn(self, text: str) -> None:
        if self._world.rank == 0:
            logger.warning("%s", text)


def _copy(checkpoint: SurveyedCheckpoint) -> Copy:
    return Copy(checkpoint.found.step, checkpoint.manifest.attempt if checkpoint.manifest else 0)
