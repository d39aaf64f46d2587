"""All mirrors of a run: where a resume may take checkpoints from, and where committed ones go. Failures of mirrors
never stop a job that runs; at its start a mirror that cannot be asked is an error."""

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from keepstep.checkpoint.claim import FolderClaim
from keepstep.checkpoint.mirrors.beside import Work
from keepstep.checkpoint.mirrors.fetching import fetch, look_into
from keepstep.checkpoint.mirrors.offers import Offers, look_at_mirrors
from keepstep.checkpoint.mirrors.uploads import Uploads, copy_of
from keepstep.checkpoint.resume import Elsewhere
from keepstep.config.address import parse_address
from keepstep.config.mirror import MirrorConfig
from keepstep.dist.agree import agreed
from keepstep.dist.world import World, host_name
from keepstep.errors import ConfigError, CouldNotLookError, DamagedCheckpointError, ResumeError
from keepstep.plan import layout
from keepstep.plan.layout import Naming
from keepstep.plan.mirror import Copy, choose_fetches, left_behind
from keepstep.plan.resume import Condition
from keepstep.storage.line import Line, is_left, note_line, read_line
from keepstep.storage.process import this_process
from keepstep.storage.survey import SurveyedCheckpoint, survey

logger = logging.getLogger("keepstep")


class RunMirrors:
    """The mirrors of one run. Methods are collective but for `waiting`, `committed`, `failures` and `close`.

    Args:
        mirrors: as configured.
        folder: the run's folder.
        prefix: of the run, below each mirror's address: its name.
        world: the ranks.
        naming: how checkpoints are called. A Trainer has a repository of the Hub to itself: `hf://user/repo` is its
            run.
        stops_on_damage: a damaged checkpoint ends the resume, and nothing is moved.

    Raises:
        ConfigError: a mirror is the run's own folder.
    """

    def __init__(
        self,
        mirrors: Sequence[MirrorConfig],
        folder: Path,
        prefix: str,
        world: World,
        naming: Naming = layout.NATIVE,
        *,
        stops_on_damage: bool = False,
    ) -> None:
        self._mirrors, self._folder, self._prefix, self._naming = tuple(mirrors), folder, prefix, naming
        self._world, self._stops_on_damage = world, stops_on_damage
        self._offers = Offers()
        self._here: frozenset[Copy] = frozenset()
        self._line: Line | None = None
        self._uploads: Uploads | None = None
        self._is_closed = False
        for mirror in self._mirrors:
            self._refuse_own_folder(mirror)

    @property
    def attempt(self) -> int:
        """The highest attempt of the run that has left a trace on a mirror."""
        return self._offers.attempt

    @property
    def are_wanted(self) -> bool:
        """Whether checkpoints are to be copied anywhere."""
        return bool(self._mirrors)

    @property
    def failures(self) -> int:
        """Uploads that failed so far; counted on the main process."""
        return self._uploads.failures if self._uploads is not None else 0

    def glance(self) -> None:
        """Learn which attempts of the run have left traces, where a job saves without a resume."""
        try:
            self._look()
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
            CouldNotLookError: it cannot be asked, or holds a newer version's checkpoint.
            DamagedCheckpointError: there are checkpoints on mirrors, and nothing good is left anywhere.
            GuardRefusedError: what is there is of a run that was begun with something else.
        """
        if not self._mirrors:
            return ()
        self._look()
        if self._world.rank == 0:
            for text in (*self._offers.partial, *self._offers.damaged):
                logger.warning("ignored %s", text)
        local, offered, damaged_here = self._present()
        if self._stops_on_damage and requested is None and damaged_here > max((c.step for c in local), default=-1):
            return ()  # the resume path says what is wrong with it, and moves nothing
        best = max((copy.step for copy in (*local, *offered)), default=-1)
        if self._offers.too_new is not None and self._offers.too_new[0] > best and requested is None:
            # Going on from an older one would throw away, in silence, what a newer version has done.
            raise CouldNotLookError(self._offers.too_new[1])
        fetches = choose_fetches(local, offered, requested)
        problems = list(self._offers.damaged)
        remote: list[Elsewhere] = []
        for copy in fetches:
            for offer in self._offers.of(copy):
                looked = look_into(offer, self._world)
                problem = looked.problem
                if not problem and looked.manifest is not None:
                    one = Elsewhere(copy.step, looked.manifest, str(offer), offer.files, looked.record)
                    is_wanted_whole = whole_from is not None and copy.step >= whole_from
                    if take is None or (offer.mirror.fetch == "ranges" and not is_wanted_whole):
                        if take is not None and left_behind(local, copy):
                            self._leave_line(copy, take())
                        remote.append(one)
                        break
                    guard(one)
                    claim = take()
                    if left_behind(local, copy):
                        self._leave_line(copy, claim)
                    problem = fetch(looked, self._folder, claim, self._naming, self._world)
                    if not problem:
                        return tuple(remote)
                problems.append(f"{offer} is damaged: {problem}")
                if self._stops_on_damage:
                    raise DamagedCheckpointError(
                        f"{problems[-1]}. Nothing was moved; on_damage: fall_back takes the checkpoint before it"
                    )
                self._warn(f"{problems[-1]}; trying another copy, or the checkpoint before it")
        is_asked_for_here = requested is not None and not fetches
        if problems and not remote and not local and not is_asked_for_here:
            raise DamagedCheckpointError(
                f"nothing good is left to resume from, in {self._folder} or on a mirror: {'; '.join(problems[:3])}. "
                "--fresh starts over"
            )
        if requested is not None and fetches and not remote:
            raise DamagedCheckpointError(f"step {requested} was asked for: {'; '.join(problems[:3])}")
        return tuple(remote)

    def repair(self, step: int, claim: FolderClaim) -> bool:
        """Fetch a checkpoint whose copy here is damaged, and was put away. Returns whether it is whole here now.

        Raises as `bring`.
        """
        # That very one: what another attempt has saved at this step may be of another line.
        for copy in (copy for copy in self._here if copy.step == step):
            for offer in self._offers.of(copy):
                looked = look_into(offer, self._world)
                problem = looked.problem or fetch(looked, self._folder, claim, self._naming, self._world)
                if not problem:
                    self._warn(f"step {step} was damaged here, and was repaired from {offer}")
                    return True
                self._warn(f"{offer} is damaged as well: {problem}")
        return False

    def start(self, claim: FolderClaim) -> None:
        """Let checkpoints be copied from now on, beside the job."""
        if self._world.rank or not self._mirrors or self._uploads is not None or self._is_closed:
            return
        process = this_process()
        holder = f"process {process.pid} on {host_name()}, begun {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}"
        works = [
            Work(one, self._folder, self._prefix_of(one), claim.attempt, holder, self._naming) for one in self._mirrors
        ]
        present = [o for o in self._offers.found if not is_left(self._line, o.copy.step, o.copy.attempt)]
        known = [[offer.copy for offer in present if offer.mirror == one] for one in self._mirrors]
        for mirror in self._mirrors:
            self._warn_of_same_device(mirror)
        self._uploads = Uploads(works, known)

    def committed(self, step: int, *, forced: bool = False) -> None:
        """A checkpoint was committed. `forced`: it is copied whatever the period."""
        if self._uploads is not None and not self._is_closed:
            self._uploads.committed(step, forced=forced)

    def waiting(self, complete: Collection[SurveyedCheckpoint], num_to_keep: int | None) -> frozenset[int]:
        """Steps of checkpoints that retention must leave where they are. May be called on any thread."""
        return self._uploads.waiting(complete, num_to_keep) if self._uploads is not None else frozenset()

    @property
    def are_used(self) -> bool:
        """Whether checkpoints are copied somewhere now, as far as this process does that."""
        return self._uploads is not None and not self._is_closed

    def close(self, seconds_left: Callable[[], float | None] = lambda: None) -> None:
        """Wait for uploads, and end them. Arguments as of `Uploads.close`. May be called twice."""
        if self._uploads is not None and not self._is_closed:
            self._is_closed = True
            self._uploads.close(seconds_left)

    def _look(self) -> None:
        self._offers = look_at_mirrors(self._mirrors, self._prefix_of, self._naming, self._world)

    def _prefix_of(self, mirror: MirrorConfig) -> str:
        address = parse_address(mirror.address)
        is_own = self._naming is layout.TRAINER and address.scheme == "hf" and not address.path
        return "" if is_own else self._prefix

    def _place_of(self, mirror: MirrorConfig) -> Path | None:
        """The folder of this machine that a mirror is; None of others."""
        address = parse_address(mirror.address)
        return Path(address.path, self._prefix_of(mirror)).resolve() if address.scheme == "file" else None

    def _refuse_own_folder(self, mirror: MirrorConfig) -> None:
        place, own = self._place_of(mirror), self._folder.resolve()
        if place is not None and (place == own or place in own.parents or own in place.parents):
            raise ConfigError(
                f"{mirror.address}: this mirror and the folder of the run ({own}) lie in one another; retention there "
                "would delete what is kept here. Give it a place of its own"
            )

    def _warn_of_same_device(self, mirror: MirrorConfig) -> None:
        place = self._place_of(mirror)
        if place is None:
            return
        with contextlib.suppress(OSError):  # a drive that cannot be asked stops no job: the uploads will tell
            there = next(one for one in (place, *place.parents) if one.is_dir())
            if there.stat().st_dev == self._folder.stat().st_dev:
                logger.warning(
                    "%s lies on the same device as save_dir, and goes with it (or is no drive mounted there?)",
                    mirror.address,
                )

    def _present(self) -> tuple[frozenset[Copy], frozenset[Copy], int]:
        """Complete checkpoints here and on mirrors, without those of lines of the run that were left; and the highest
        step of a damaged one here, -1 without one."""
        found: tuple[frozenset[Copy], frozenset[Copy], int, Line | None] = (frozenset(), frozenset(), -1, None)
        with agreed(self._world, f"looking for checkpoints in {self._folder}", ResumeError):
            if self._world.rank == 0:
                line = read_line(self._folder) or self._offers.line
                seen = survey(self._folder, self._naming)
                local, offered = (
                    frozenset(copy for copy in copies if not is_left(line, copy.step, copy.attempt))
                    for copies in ([copy_of(c) for c in seen.complete], self._offers.copies)
                )
                damaged = [c.found.step for c in seen.checkpoints if c.found.condition is Condition.DAMAGED]
                found = (local, offered, max(damaged, default=-1), line)
        self._here, offered, worst, self._line = self._world.broadcast(found)
        return self._here, offered, worst

    def _leave_line(self, copy: Copy, claim: FolderClaim) -> None:
        with agreed(self._world, f"noting where the run goes on in {self._folder}", ResumeError):
            if self._world.rank == 0:
                note_line(self._folder, Line(copy.step, claim.attempt))

    def _warn(self, text: str) -> None:
        if self._world.rank == 0:
            logger.warning("%s", text)
