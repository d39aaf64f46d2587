"""Copies checkpoints from a mirror into a run's folder, where they are committed like any other."""

import contextlib
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from keepstep.config.address import Address
from keepstep.errors import (
    CheckpointNotFoundError,
    ConfigError,
    DamagedCheckpointError,
    KeepstepError,
    MirrorError,
)
from keepstep.ops.mirror.tally import Tally
from keepstep.ops.place import is_checkpoint, open_stored, survey_address
from keepstep.plan import layout
from keepstep.plan.manifest import Manifest
from keepstep.plan.mirror import Copy, left_behind, present_line
from keepstep.plan.resume import Condition
from keepstep.storage.local import make_folders, publish, remove_tree
from keepstep.storage.lock import RunLock, acquire_lock
from keepstep.storage.parallel import run_on
from keepstep.storage.quarantine import quarantine
from keepstep.storage.stored import StoredCheckpoint
from keepstep.storage.stores.meter import Meter
from keepstep.storage.survey import SurveyedCheckpoint, inspect, survey
from keepstep.storage.transfer import pull_files, write_manifest
from keepstep.storage.verify import verify_files

Watch = Callable[[int, int], None]

# Files that are fetched at once, each in several pieces.
_FILES = 4


@dataclass(frozen=True)
class Pulled:
    """A checkpoint that is in the folder now.

    Attributes:
        step, size: of it; bytes.
        path: where it lies.
        is_new: whether it was fetched; False where it was there already.
        replaced: where a damaged copy lies that had its name; None where there was none.
    """

    step: int
    path: str
    size: int
    is_new: bool
    replaced: str | None = None


@dataclass(frozen=True)
class PullResult:
    """What a pull did. `warnings` tell what a resume from the folder will not take as one may think."""

    address: str
    pulled: tuple[Pulled, ...]
    warnings: tuple[str, ...]


def pull(
    address: Address,
    folder: Path,
    *,
    steps: Collection[int] = (),
    take_all: bool = False,
    watch: Watch = lambda done, total: None,
) -> PullResult:
    """Fetch checkpoints, every byte compared with its digest.

    Args:
        address: of a checkpoint, or of a run.
        folder: the run's folder to be. It is made if it is not there, and held like a job holds it.
        steps: which of a run.
        take_all: all that are complete. Without both the newest of the run's present line.
        watch: told how many bytes of how many have come.

    Raises:
        CheckpointNotFoundError: what was asked for is not there.
        DamagedCheckpointError: it is damaged there. Nothing of it was left here.
        MirrorError: the folder has another checkpoint of that name, or a copy did not end.
        RunInUseError: a job holds the folder.
        CouldNotLookError: the store cannot be asked.
    """
    chosen = _chosen(address, steps, take_all=take_all)
    was_there = folder.exists()
    try:
        lock = acquire_lock(folder)
    except OSError as error:
        if isinstance(error, KeepstepError):
            raise
        raise MirrorError(f"cannot write to {folder}: {error.strerror or error}") from error
    try:
        return _pull(address, folder, chosen, lock, watch)
    finally:
        lock.release()
        if not was_there:
            with contextlib.suppress(OSError):
                folder.rmdir()  # only where nothing came


def _chosen(address: Address, steps: Collection[int], *, take_all: bool) -> Sequence[StoredCheckpoint]:
    """What is fetched, the newest first."""
    if is_checkpoint(address):
        if steps or take_all:
            raise ConfigError(
                f"{address} is one checkpoint; give the address of its run, or leave --step and --all out"
            )
        return [_complete(address, open_stored(address))]
    found = survey_address(address)
    there = {one.found.step: one for one in found.checkpoints}
    if not there:
        runs = f"; runs with checkpoints: {', '.join(found.runs)}" if found.runs else ""
        raise CheckpointNotFoundError(f"{address}: no checkpoint there{runs}")
    if steps:
        absent = sorted(set(steps) - there.keys())
        if absent:
            known = ", ".join(map(str, sorted(there)))
            raise CheckpointNotFoundError(f"{address}: no checkpoint of step {absent[0]}; there are {known}")
        return [_complete(address, there[step]) for step in sorted(set(steps), reverse=True)]
    complete = {Copy(one.found.step, one.manifest.attempt): one for one in found.complete if one.manifest}
    if not complete:
        newest = there[max(there)]
        raise DamagedCheckpointError(
            f"{address}: none of {len(there)} checkpoints is complete; {newest.files.name}: {newest.found.problem}"
        )
    ordered = sorted(complete, reverse=True) if take_all else present_line(complete)[:1]
    return [complete[copy] for copy in ordered]


def _complete(address: Address, one: StoredCheckpoint) -> StoredCheckpoint:
    if one.found.condition is Condition.COMPLETE:
        return one
    raise DamagedCheckpointError(
        f"{address}: {one.files.name} is {one.found.condition.value}: {one.found.problem}; keepstep ls tells which "
        "others are complete"
    )


def _pull(
    address: Address, folder: Path, chosen: Sequence[StoredCheckpoint], lock: RunLock, watch: Watch
) -> PullResult:
    manifests = [(one, one.manifest) for one in chosen if one.manifest is not None]
    state = {one.found.step: _look_here(folder, one, manifest) for one, manifest in manifests}
    due = sum(manifest.size for one, manifest in manifests if state[one.found.step] != "same")
    meter = Tally(due, watch).meter()
    pulled: list[Pulled] = []
    damaged: list[str] = []
    for one, manifest in manifests:
        step, target = one.found.step, folder / one.files.name
        if state[step] == "same":
            pulled.append(Pulled(step, str(target), manifest.size, is_new=False))
            continue
        try:
            replaced = _fetch(one, manifest, folder, lock, meter, replace=state[step] == "damaged")
        except DamagedCheckpointError as error:
            damaged.append(str(error))
        except OSError as error:
            if isinstance(error, KeepstepError):
                raise
            raise MirrorError(
                f"{one.files} was not copied: {_text(error)}; nothing of it was left. {_told(pulled)}. The same "
                "command goes on with what is missing"
            ) from error
        else:
            pulled.append(Pulled(step, str(target), manifest.size, is_new=True, replaced=replaced))
    if damaged:
        raise DamagedCheckpointError(
            f"{damaged[0]}. Nothing of it was left. {_told(pulled)}. keepstep verify {address} tells which are good; "
            "--step takes another one"
        )
    return PullResult(str(address), tuple(pulled), _warnings(folder, manifests))


def _look_here(folder: Path, one: StoredCheckpoint, manifest: Manifest) -> str:
    """What has the name in the folder: "absent", "same", or "damaged" where it is a damaged copy of the same."""
    target = folder / one.files.name
    if not os.path.lexists(target):
        return "absent"
    here = inspect(target, one.found.step)
    is_same = here.manifest == manifest
    if here.found.condition is Condition.COMPLETE and is_same:
        return "damaged" if verify_files(target, manifest, sorted(manifest.files)) else "same"
    if here.found.condition is Condition.DAMAGED and (is_same or here.manifest is None):
        return "damaged"
    raise MirrorError(
        f"{target} is there and is another checkpoint than {one.files} ({_attempt_of(here)}; there it is of attempt "
        f"{manifest.attempt}). Nothing was copied: move it away, or pull into another folder"
    )


def _attempt_of(here: SurveyedCheckpoint) -> str:
    if here.manifest is None:
        return here.found.problem or here.found.condition.value
    return f"of attempt {here.manifest.attempt}"


def _fetch(
    one: StoredCheckpoint, manifest: Manifest, folder: Path, lock: RunLock, meter: Meter, *, replace: bool
) -> str | None:
    """Fetch and commit one. Returns where the damaged copy lies that had its name."""
    naming = layout.naming_of(one.files.name) or layout.NATIVE
    step, temporary = one.found.step, folder / naming.temporary_name(one.found.step, lock.number)
    remove_tree(temporary)
    make_folders(temporary)
    try:
        names = sorted(manifest.files, key=lambda name: -manifest.files[name].size)
        run_on(
            min(_FILES, len(names)),
            iter(names),
            lambda name: pull_files(one.files, manifest, [name], temporary, meter),
        )
        write_manifest(one.files, temporary)
        if inspect(temporary, step).manifest != manifest:
            raise MirrorError(f"{one.files} was changed while it was read; nothing of it was left: pull it again")
        lock.confirm()
        replaced = None
        if replace:
            report = {"checkpoint": one.files.name, "step": step, "replaced_from": str(one.files)}
            replaced = str(quarantine(folder, step, lock.number, report, naming))
        publish(temporary, folder / one.files.name)
        return replaced
    finally:
        remove_tree(temporary)


def _warnings(folder: Path, manifests: Sequence[tuple[StoredCheckpoint, Manifest]]) -> tuple[str, ...]:
    naming = layout.naming_of(manifests[0][0].files.name) or layout.NATIVE
    local = [Copy(c.found.step, c.manifest.attempt) for c in survey(folder, naming).complete if c.manifest]
    newest = max((Copy(m.step, m.attempt) for _, m in manifests), key=lambda copy: (copy.attempt, copy.step))
    if not left_behind(local, newest):
        return ()
    return (
        f"{folder} holds later steps of an earlier attempt than {naming.checkpoint_name(newest.step)}, of a line that "
        "the run has left: a resume takes the highest step. Name the step to resume from, or move those away",
    )


def _told(pulled: Sequence[Pulled]) -> str:
    names = ", ".join(str(one.step) for one in pulled)
    return f"Steps that are in the folder: {names}" if names else "The folder is as it was"


def _text(error: OSError) -> str:
    return (error.strerror or str(error)) + (f" ({error.filename})" if error.filename else "")
