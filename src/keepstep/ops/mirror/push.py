"""Copies checkpoints of a run's folder to a mirror by hand, where the job's own mirror would put them."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from keepstep.config.address import Address
from keepstep.errors import (
    CheckpointNotFoundError,
    ConfigError,
    CouldNotLookError,
    DamagedCheckpointError,
    KeepstepError,
    MirrorError,
)
from keepstep.ops.mirror.tally import Tally
from keepstep.plan import layout
from keepstep.plan.layout import Naming
from keepstep.plan.manifest import Manifest
from keepstep.plan.mirror import Copy, plan_pushes
from keepstep.plan.resume import Condition
from keepstep.storage.attempt_marks import attempts_in
from keepstep.storage.leases import hold
from keepstep.storage.line import abandoned_by, read_line
from keepstep.storage.naming import naming_in
from keepstep.storage.run_record import read_record
from keepstep.storage.stored import StoredSurvey, survey_store
from keepstep.storage.stores.base import ChangedFileError, Store
from keepstep.storage.stores.meter import Meter
from keepstep.storage.stores.opening import open_store
from keepstep.storage.survey import SurveyedCheckpoint, survey
from keepstep.storage.transfer import push_checkpoint

Watch = Callable[[int, int], None]


@dataclass(frozen=True)
class PushedCheckpoint:
    """A checkpoint that is on the mirror now. `is_new`: it was uploaded; False where it was there already."""

    step: int
    address: str
    size: int
    is_new: bool


@dataclass(frozen=True)
class PushResult:
    """What a push did. `warnings` tell of a job that may be at work with the same mirror."""

    address: str
    pushed: tuple[PushedCheckpoint, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class _Source:
    """What of a run's folder is asked for."""

    folder: Path
    naming: Naming
    manifests: dict[int, Manifest]


def push(
    place: Path,
    address: Address,
    *,
    steps: Collection[int] = (),
    name: str | None = None,
    mib_per_second: float | None = None,
    watch: Watch = lambda done, total: None,
) -> PushResult:
    """Upload checkpoints that are not there yet, the newest first. Each is held while it is read, so no retention
    deletes it.

    Args:
        place: a run's folder, or one checkpoint in it.
        address: of the mirror; the run's name follows it.
        steps: which; without them all that are complete, but those of lines that the run has left.
        name: of the run there; empty for none, None for that of the folder.
        mib_per_second: the most that is sent.
        watch: told how many bytes of how many have gone.

    Raises:
        ConfigError: the name of the run is not known, or does not work.
        CheckpointNotFoundError: what was asked for is not there.
        DamagedCheckpointError: it is not complete.
        MirrorError: the mirror has a step of a later attempt of the run, or not all could be uploaded.
        CouldNotLookError: the folder or the store cannot be asked.
    """
    source = _source(place, steps)
    prefix = _run_name(source, name)
    store = open_store(address)
    seen = survey_store(store, prefix)
    mirrored = {c.found.step: c.manifest for c in seen.complete if source.naming.step_of(c.files.name) is not None}
    plan = plan_pushes(
        _copies(source.manifests),
        _copies({step: manifest for step, manifest in mirrored.items() if manifest is not None}),
        [step for step, manifest in source.manifests.items() if mirrored.get(step) == manifest],
    )
    top = address.joined(prefix)
    if plan.refused:
        first = plan.refused[0]
        raise MirrorError(
            f"{top.joined(source.naming.checkpoint_name(first.step))} is of attempt {first.attempt} of the run, and "
            f"here step {first.step} is of attempt {source.manifests[first.step].attempt}: the run went on from before "
            "it elsewhere. Nothing was uploaded: name other steps with --step, or give this line a name with --as"
        )
    meter = Tally(sum(source.manifests[copy.step].size for copy in plan.due), watch).meter(mib_per_second)
    done = [(copy, False) for copy in plan.present]
    done += [(copy, True) for copy in _upload(source, plan.due, plan.present, store, prefix, meter, str(top))]
    pushed = tuple(
        PushedCheckpoint(
            copy.step,
            str(top.joined(source.naming.checkpoint_name(copy.step))),
            source.manifests[copy.step].size,
            is_new,
        )
        for copy, is_new in sorted(done, reverse=True)
    )
    return PushResult(str(top), pushed, _warnings(source, seen, top))


def _source(place: Path, steps: Collection[int]) -> _Source:
    place = place.resolve()
    step = layout.any_step_of(place.name)
    if step is not None:
        if steps:
            raise ConfigError(f"{place} is one checkpoint; give its folder, or leave --step out")
        folder, naming, steps = place.parent, layout.naming_of(place.name) or layout.NATIVE, (step,)
    else:
        folder, naming = place, naming_in(place)
    if not folder.is_dir():
        raise CouldNotLookError(f"{folder}: there is no such folder")
    found = {one.found.step: one for one in survey(folder, naming).checkpoints}
    manifests = {step: one.manifest for step, one in found.items() if _is_complete(one) and one.manifest is not None}
    if steps:
        for one in sorted(set(steps)):
            _require(folder / naming.checkpoint_name(one), found.get(one))
        return _Source(folder, naming, {one: manifests[one] for one in steps})
    is_left = abandoned_by(read_line(folder))
    own = {step: manifest for step, manifest in manifests.items() if not is_left(step, manifest)}
    if not own:
        raise CheckpointNotFoundError(f"{folder}: no complete checkpoint there; keepstep ls {folder} tells what is")
    return _Source(folder, naming, own)


def _is_complete(one: SurveyedCheckpoint) -> bool:
    return one.found.condition is Condition.COMPLETE


def _require(path: Path, one: SurveyedCheckpoint | None) -> None:
    if one is None:
        raise CheckpointNotFoundError(f"{path}: there is no such checkpoint; keepstep ls {path.parent} tells what is")
    if not _is_complete(one):
        kind = CheckpointNotFoundError if one.manifest is None else DamagedCheckpointError
        raise kind(f"{path} cannot be uploaded: {one.found.problem}")


def _run_name(source: _Source, name: str | None) -> str:
    if name is not None:
        if name and (Path(name).name != name or name.startswith(".") or layout.any_step_of(name) is not None):
            raise ConfigError(f"--as {name}: must work as the name of a run's folder")
        return name
    newest = source.folder / source.naming.checkpoint_name(max(source.manifests))
    if source.naming is layout.NATIVE and read_record(newest).get("run", "") is None:
        raise ConfigError(
            f"{source.folder}: its checkpoints tell no name of a run. Give --no-name to put them right below the "
            "address, as the job's own mirror does, or --as NAME"
        )
    return source.folder.name


def _copies(manifests: dict[int, Manifest]) -> list[Copy]:
    return [Copy(step, manifest.attempt) for step, manifest in manifests.items()]


def _upload(
    source: _Source, due: Sequence[Copy], present: Sequence[Copy], store: Store, prefix: str, meter: Meter, top: str
) -> list[Copy]:
    """Upload what is due. One that is damaged here does not keep the others back; a store that fails does."""
    done: list[Copy] = []
    problems: list[str] = []
    for copy in due:
        try:
            with hold(source.folder, copy.step, naming=source.naming) as checkpoint:
                push_checkpoint(checkpoint, store, prefix, meter)
        except (CheckpointNotFoundError, DamagedCheckpointError, ChangedFileError) as error:
            problems.append(str(error))
        except OSError as error:
            problems.append(_text(error))
            break
        else:
            done.append(copy)
    if problems:
        there, failed = [*present, *done], [copy for copy in due if copy not in done]
        raise MirrorError(
            f"not all checkpoints are on {top}: {problems[0]}. There: {_steps(there)}; not there: {_steps(failed)}. "
            "The same command goes on with what is missing"
        )
    return done


def _warnings(source: _Source, seen: StoredSurvey, top: Address) -> tuple[str, ...]:
    newest = max(manifest.attempt for manifest in source.manifests.values())
    noted = max(attempts_in(seen.notes), default=0)
    if noted <= newest:
        return ()
    return (
        f"attempt {noted} of the run has {top}, and here is nothing later than attempt {newest}: a job may be at work "
        "there, and go on from before these checkpoints",
    )


def _steps(copies: Sequence[Copy]) -> str:
    return ", ".join(f"step {copy.step}" for copy in sorted(copies, reverse=True)) or "none"


def _text(error: OSError) -> str:
    if isinstance(error, KeepstepError):
        return str(error)
    return (error.strerror or str(error)) + (f" ({error.filename})" if error.filename else "")
