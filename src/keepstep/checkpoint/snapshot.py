"""Takes snapshots of a job's state. What was planned for one serves the next, as long as nothing but values changes."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial

import torch

from keepstep.checkpoint.garbage import no_collections
from keepstep.dcp.entries import Entry
from keepstep.dcp.fragments import Fragment, fragment_of
from keepstep.dcp.image import LiveImage
from keepstep.dcp.items import own_entries, signature
from keepstep.dcp.pickles import pickle_trees
from keepstep.dcp.plan import Plan, by_rank, differing_groups, group_digests, make_plan, settle_differences
from keepstep.dcp.shard import Shard, lay_out
from keepstep.dcp.staged import StagedImage
from keepstep.dist.agree import agreed, told_by_all
from keepstep.dist.world import World, host_name
from keepstep.errors import SaveError
from keepstep.plan.room import Need, decide_room
from keepstep.state.component import Saveable
from keepstep.state.job_state import collect
from keepstep.storage.buffers import PageBuffer
from keepstep.storage.memory import available_bytes

logger = logging.getLogger("keepstep")

# Keys of the checkpoint itself, which no component owns.
STEP_KEY = "step"


class _Fit(IntEnum):
    """How this rank's state fits the last plan."""

    AS_BEFORE = 0
    OUTGROWN = 1  # a pickle is longer than its slot
    CHANGED = 2


@dataclass
class _State:
    """All state of this rank at one moment."""

    entries: dict[str, Entry]
    pickles: dict[str, bytes]
    signature: list[tuple[object, ...]] = field(default_factory=list)


@dataclass(frozen=True)
class Snapshot:
    """The state of one step, ready to be written.

    Attributes:
        image: the content of this rank's file.
        fragment: this rank's part of `.metadata`, if that has changed since the last snapshot.
        in_memory: all of it is a copy: the job may go on while it is written.
        seconds: how long the job stood still for it.
    """

    step: int
    image: LiveImage
    fragment: Fragment | None
    in_memory: bool
    seconds: float


class Snapshots:
    """Takes one snapshot after the other, into the same memory.

    Args:
        components: the parts of the job.
        world: the ranks.
        buffered: copy all state, if memory allows it, so that the job can go on at once.
    """

    def __init__(self, components: Sequence[Saveable], world: World, *, buffered: bool) -> None:
        self._components, self._world = components, world
        self._buffered = buffered
        self._plan: Plan | None = None
        self._image: LiveImage | None = None
        self._buffer: PageBuffer | None = None
        self._renamed: dict[str, int] = {}
        self._is_told = False

    def take(self, step: int, phase: str) -> Snapshot:
        """Take the state of this moment. Collective; the one before must be written.

        Args:
            step: completed steps; all ranks must name the same.
            phase: what is done, for errors.

        Raises:
            SaveError: a rank failed, or the ranks are at different steps.
            ReplicaMismatchError: on all ranks, when a value that must be the same on all of them is not.
        """
        with no_collections():
            return self._take(step, phase)

    def _take(self, step: int, phase: str) -> Snapshot:
        started = time.monotonic()
        if self._buffer is not None and self._buffer.is_inherited:
            self.release()  # of the process that this one was forked from
        state = _State({}, {})

        def look() -> tuple[int, _Fit, dict[bytes, bytes]]:
            nonlocal state
            state = self._collect(step)
            fit = self._fit(state)
            if fit is _Fit.CHANGED or self._plan is None:
                return step, fit, {}
            digests = group_digests(self._plan, state.entries, state.pickles)
            if fit is _Fit.AS_BEFORE and self._image is not None:
                self._image.take(state.entries, state.pickles)
            return step, fit, digests

        told = told_by_all(self._world, f"{phase}: collecting the state", look, SaveError)
        _refuse_different_steps([at for at, _, _ in told])
        fit = max(fit for _, fit, _ in told)
        if fit is _Fit.CHANGED or differing_groups([digests for _, _, digests in told]):
            state = self._agree_plan(state, phase)
            fit = _Fit.CHANGED
        if fit is not _Fit.AS_BEFORE:
            self._lay_out(state, phase, everywhere=fit is _Fit.CHANGED)
        assert self._image is not None
        fragment = None if self._is_told else fragment_of(self._image.shard)
        self._is_told = True
        return Snapshot(step, self._image, fragment, self._buffered, time.monotonic() - started)

    def prepare(self, step: int, phase: str) -> None:
        """Make the plan and get the memory before the first save needs them. Collective."""
        if self._buffered:
            self.take(step, phase)
            self._is_told = False

    def forget_told(self) -> None:
        """After a save that failed: the main process may lack what it was told of the places."""
        self._is_told = False

    def release(self) -> None:
        """Give plan and memory back."""
        self._plan = self._image = self._buffer = None

    def _collect(self, step: int) -> _State:
        entries = collect(self._components)
        entries[STEP_KEY] = Entry(torch.tensor(step, dtype=torch.int64))
        return self._named(entries)

    def _named(self, entries: Mapping[str, Entry]) -> _State:
        own = own_entries(entries, self._world.rank)
        if self._renamed:
            own = by_rank(own, self._renamed, self._world.rank)
        return _State(own, pickle_trees(own), signature(own))

    def _fit(self, state: _State) -> _Fit:
        if self._plan is None or self._image is None or self._plan.signature != state.signature:
            return _Fit.CHANGED
        return _Fit.AS_BEFORE if self._image.fits(state.pickles) else _Fit.OUTGROWN

    def _agree_plan(self, state: _State, phase: str) -> _State:
        """Make a new plan. Buffers that turn out to differ between ranks get names of their own, and once more."""
        comparing = f"{phase}: comparing what several ranks hold"
        self._plan = None
        while True:
            plan = make_plan(state.entries, self._world, f"{phase}: dividing the work")
            compare = partial(group_digests, plan, state.entries, state.pickles)
            differing = differing_groups(told_by_all(self._world, comparing, compare, SaveError))
            if not differing:
                self._plan = plan
                return state
            buffers = settle_differences(plan, differing, state.entries, state.pickles, self._world, comparing)
            with agreed(self._world, comparing, SaveError):
                self._renamed |= buffers
                state = self._named(state.entries)

    def _lay_out(self, state: _State, phase: str, *, everywhere: bool) -> None:
        """Lay the file out anew, where that is needed, and take the snapshot again."""
        plan = self._plan
        assert plan is not None
        with agreed(self._world, f"{phase}: laying out the files", SaveError):
            shard = None
            if everywhere or self._image is None or not self._image.fits(state.pickles):
                shard = lay_out(self._world.rank, plan.items, state.pickles, plan.aliases)
        self._decide_on_memory(shard, phase)
        with agreed(self._world, f"{phase}: collecting the state", SaveError):
            if shard is not None:
                self._image = None  # its memory goes before more is taken
                kind = StagedImage if self._buffered else LiveImage
                self._image = kind(shard, self._buffer_for(shard))
                self._is_told = False
            assert self._image is not None
            self._image.take(state.entries, state.pickles)

    def _decide_on_memory(self, shard: Shard | None, phase: str) -> None:
        if not self._buffered:
            return
        with agreed(self._world, f"{phase}: looking at the memory", SaveError):
            held = self._buffer.size if self._buffer is not None else 0
            size = max(0, shard.size - held) if shard is not None else 0
            need = Need(host_name(), size, available_bytes())
        room = decide_room(self._world.gather(need))
        if not room.fits:
            self._buffered = False
            self._buffer = None
        if self._world.rank == 0 and not room.fits:
            logger.warning("saves are synchronous from now on: not enough memory for %s", room.reason)
        elif self._world.rank == 0 and size:
            logger.info("asynchronous saves: %s", room.reason)

    def _buffer_for(self, shard: Shard) -> PageBuffer:
        size = shard.size if self._buffered else shard.packed
        if self._buffer is None or self._buffer.size < size:
            self._buffer = None
            self._buffer = PageBuffer(size)
            if self._buffered:
                self._buffer.warm()
        return self._buffer


def _refuse_different_steps(steps: Sequence[int]) -> None:
    if len(set(steps)) > 1:
        at = ", ".join(f"rank {rank}: {step}" for rank, step in enumerate(steps))
        raise SaveError(f"the ranks want to save different steps ({at})", rank=0, phase="meeting")
