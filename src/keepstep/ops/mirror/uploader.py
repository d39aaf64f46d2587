"""Keeps one mirror of a run's folder up to date: what is due goes there, what retention gives up goes from there."""

import contextlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keepstep.errors import CheckpointNotFoundError, DamagedCheckpointError
from keepstep.ops.mirror.fence import Fence
from keepstep.plan import layout
from keepstep.plan.layout import Naming
from keepstep.plan.manifest import Manifest
from keepstep.plan.mirror import Copy, due_uploads, plan_mirror_retention
from keepstep.storage.leases import hold, pinned_steps
from keepstep.storage.line import abandoned_by, is_left, read_line
from keepstep.storage.stored import StoredCheckpoint, survey_store
from keepstep.storage.stores.base import ChangedFileError, Store
from keepstep.storage.stores.meter import Meter
from keepstep.storage.survey import survey
from keepstep.storage.transfer import Pushed, TakenNameError, push_checkpoint


@dataclass(frozen=True)
class Wishes:
    """What is asked of a mirror.

    Attributes:
        period_steps, num_to_keep: as of `MirrorConfig`.
        naming: how checkpoints are called in the run's folder.
    """

    period_steps: int | None = None
    num_to_keep: int | None = None
    naming: Naming = layout.NATIVE


@dataclass
class Uploader:
    """One run's folder and its mirror.

    Args:
        folder: the run's folder here.
        store, prefix: where its checkpoints go.
        wishes: which, and how many stay.
        fence: the right to write there.
        meter: makes one for an upload.
        tell: told of events, as plain dicts.
    """

    folder: Path
    store: Store
    prefix: str
    wishes: Wishes
    fence: Fence
    meter: Callable[[], Meter] = Meter
    tell: Callable[[dict[str, Any]], None] = lambda event: None
    mirrored: set[Copy] = field(default_factory=set)
    forced: set[int] = field(default_factory=set)
    _hopeless: set[Copy] = field(default_factory=set)
    _begun: set[int] = field(default_factory=set)
    _left: set[Copy] = field(default_factory=set)

    def begin(self) -> None:
        """Take the mirror, and learn what is there.

        Raises:
            RunInUseError: a later attempt of the run has it.
            CouldNotLookError, OSError: it cannot be asked.
        """
        line = self.fence.take(read_line(self.folder))
        seen = survey_store(self.store, self.prefix)
        there = {_copy_of(one) for one in seen.complete if self.wishes.naming.step_of(one.files.name) is not None}
        self._left = {copy for copy in there if is_left(line, copy.step, copy.attempt)}
        self.mirrored = there - self._left
        if self.wishes.naming == layout.NATIVE:
            self._begun = {c.found.step for c in seen.checkpoints if _is_unfinished_upload(c)}
        self.tell({"event": "begun", "mirrored": [[copy.step, copy.attempt] for copy in sorted(self.mirrored)]})

    def due(self) -> tuple[Copy, ...]:
        """What is to be uploaded, the newest first.

        Raises:
            CouldNotLookError: the folder here cannot be read.
        """
        wishes = self.wishes
        return due_uploads(
            self._local() - self._hopeless, self.mirrored, wishes.period_steps, self.forced, wishes.num_to_keep
        )

    def upload(self, copy: Copy) -> None:
        """Upload one checkpoint, and apply retention there.

        A checkpoint that is gone or damaged is told of and not tried again.

        Raises:
            RunInUseError: a later attempt of the run has the mirror.
            OSError: the mirror cannot be asked, or refuses; it is worth another try.
        """
        naming = self.wishes.naming
        self._begun.add(copy.step)
        try:
            with hold(self.folder, copy.step, naming=naming) as checkpoint:
                pushed = push_checkpoint(checkpoint, self.store, self.prefix, self.meter(), self.fence.confirm)
        except (CheckpointNotFoundError, DamagedCheckpointError, ChangedFileError, TakenNameError) as error:
            if isinstance(error, TakenNameError):
                self._begun.discard(copy.step)  # what lies there is not ours to clear away
            self._hopeless.add(copy)
            self.tell({"event": "given up", "step": copy.step, "attempt": copy.attempt, "problem": str(error)})
            return
        self._note(pushed)
        self._apply_retention()
        self._clear()

    def _note(self, pushed: Pushed) -> None:
        copy = Copy(pushed.step, pushed.attempt)
        self.mirrored = {one for one in self.mirrored if one.step != copy.step} | {copy}
        self._left = {one for one in self._left if one.step != copy.step}
        self.tell({"event": "mirrored", "step": copy.step, "attempt": copy.attempt, "bytes": pushed.size})

    def _local(self) -> set[Copy]:
        abandoned = abandoned_by(read_line(self.folder))
        found = [(c.found.step, c.manifest) for c in survey(self.folder, self.wishes.naming).complete]
        return {_copy(step, manifest) for step, manifest in found if manifest and not abandoned(step, manifest)}

    def _apply_retention(self) -> None:
        """Only after an upload: the newest is complete there then."""
        if self.wishes.num_to_keep is not None:
            for copy in sorted(self._left):
                self._remove(copy.step)
                self._left.discard(copy)
                self.tell({"event": "deleted", "step": copy.step, "reason": "of a line of the run that was left"})
        for verdict in plan_mirror_retention(self.mirrored, self.wishes.num_to_keep, self._pinned()):
            if verdict.keep:
                continue
            self._remove(verdict.copy.step)
            self.mirrored.discard(verdict.copy)
            self.tell({"event": "deleted", "step": verdict.copy.step, "reason": verdict.reason})

    def _clear(self) -> None:
        """Take away what uploads have left that will not go on: their checkpoints are not there any more."""
        self._begun -= {copy.step for copy in self.mirrored}
        newest = max(copy.step for copy in self.mirrored)
        for step in sorted(self._begun - {copy.step for copy in self.due()}):
            if step < newest:
                self._remove(step)
                self._begun.discard(step)

    def _remove(self, step: int) -> None:
        name = self.wishes.naming.checkpoint_name(step)
        self.fence.confirm()
        self.store.remove(f"{self.prefix}/{name}" if self.prefix else name, layout.MANIFEST)

    def _pinned(self) -> Collection[int]:
        with contextlib.suppress(OSError):
            return pinned_steps(self.folder)
        return ()


def _is_unfinished_upload(checkpoint: StoredCheckpoint) -> bool:
    """Whether an upload of keepstep's has left this. What holds anything else is somebody else's."""
    return bool(checkpoint.sizes) and all(map(layout.is_native_file, checkpoint.sizes))


def _copy_of(checkpoint: StoredCheckpoint) -> Copy:
    return _copy(checkpoint.found.step, checkpoint.manifest)


def _copy(step: int, manifest: Manifest | None) -> Copy:
    return Copy(step, manifest.attempt if manifest else 0)
