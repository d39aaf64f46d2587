"""Says which checkpoint of a folder a job would go on with, and whether it is as it was written. Changes nothing."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from keepstep.errors import (
    CheckpointNotFoundError,
    CouldNotLookError,
    DamagedCheckpointError,
    RunInUseError,
)
from keepstep.ops.found import is_trainers, survey_run
from keepstep.ops.trainer_state import TrainerFacts, trainer_facts
from keepstep.plan import layout
from keepstep.plan.layout import Naming
from keepstep.plan.lock import Claim
from keepstep.plan.manifest import Manifest
from keepstep.plan.resume import Condition, ResumeDecision, Start, decide
from keepstep.plan.trainer_files import STATE
from keepstep.storage.json_file import read_json
from keepstep.storage.line import abandoned_by, read_line
from keepstep.storage.lock import look_at_lock
from keepstep.storage.naming import naming_in
from keepstep.storage.quarantine import quarantined_steps
from keepstep.storage.run_record import read_record
from keepstep.storage.survey import SurveyedCheckpoint
from keepstep.storage.verify import verify_files

# Told how many bytes of how many were dealt with.
Watch = Callable[[int, int], object]
_FAILURES = {
    Start.NOT_FOUND: ("failed", CheckpointNotFoundError.exit_code),
    Start.TOO_NEW: ("failed", CouldNotLookError.exit_code),
    Start.NOTHING_GOOD: ("damaged", DamagedCheckpointError.exit_code),
}


@dataclass(frozen=True)
class FolderOutlook:
    """What a start in a folder would go on with.

    Attributes:
        outcome: "fresh", "resume", or "in use", "damaged", "failed".
        exit_code: with which the start would end at once; 0 when it would run.
        folder: the run's folder.
        checkpoint: from which it would go on; None for a fresh start.
        step: completed steps.
        reason: why this checkpoint, or why none.
        notes: what is passed over.
        world_size: ranks that had saved it.
        verified: bytes that were read and are as they were written; 0 where it has no digests.
        record: its run record.
        trainer: what a Trainer's checkpoint tells.
        problem: the error that the start would end with.
    """

    outcome: str
    exit_code: int
    folder: str
    checkpoint: str | None = None
    step: int = 0
    reason: str = ""
    notes: tuple[str, ...] = ()
    world_size: int | None = None
    verified: int = 0
    record: dict[str, Any] = field(default_factory=dict)
    trainer: TrainerFacts | None = None
    problem: str = ""


def look_ahead(path: Path, watch: Watch = lambda done, total: None) -> FolderOutlook:
    """Find the newest good checkpoint of a folder, or judge the one that is named.

    Args:
        path: a run's folder, or a checkpoint in it.
        watch: told of the progress of one checkpoint, in bytes.

    Raises:
        CouldNotLookError: the folder cannot be read.
    """
    requested = layout.any_step_of(path.resolve().name)
    folder = path if requested is None else path.resolve().parent
    naming = naming_in(folder) if requested is None else layout.naming_of(path.resolve().name) or layout.NATIVE
    there = {one.found.step: one for one in survey_run(folder).checkpoints}
    line = read_line(folder)
    abandoned = abandoned_by(line)
    found = [one.found for step, one in there.items() if not abandoned(step, one.manifest)]
    decision = decide(found, requested, quarantined_steps(folder), naming)
    notes = tuple(f"{naming.checkpoint_name(one.step)} is passed over: {one.problem}" for one in decision.ignored)
    base = FolderOutlook("fresh", 0, str(folder), reason=decision.reason, notes=notes)
    if decision.start in _FAILURES:
        outcome, code = _FAILURES[decision.start]
        return replace(base, outcome=outcome, exit_code=code, problem=f"{folder}: {decision.reason}")
    outlook = base
    if decision.start is Start.RESUME:
        outlook = _newest_good(base, decision, there, naming, watch)
    elif line is not None and line.source is not None:
        outlook = _from_elsewhere(base, Path(line.source), watch)
    elif plain := [one.path.name for one in there.values() if _is_plain(one)]:
        problem = (
            f"{folder} holds checkpoints that keepstep did not write ({', '.join(plain[-3:])}), and none of its own; "
            f"keepstep adopt {folder} takes the whole ones over"
        )
        outlook = replace(base, outcome="failed", exit_code=CheckpointNotFoundError.exit_code, problem=problem)
    claim, holder = look_at_lock(folder)
    if claim is Claim.UNKNOWN:
        note = f"{holder} may hold the folder: a start waits for a sign of life of it"
        return replace(outlook, notes=(*outlook.notes, note))
    if claim is Claim.HELD and not outlook.exit_code:
        code, problem = RunInUseError.exit_code, f"{folder} is in use by {holder}"
        return replace(outlook, outcome="in use", exit_code=code, problem=problem)
    return outlook


def _is_plain(checkpoint: SurveyedCheckpoint) -> bool:
    """Whether it is one that a Trainer wrote alone. A folder with such is not an empty one."""
    is_incomplete = checkpoint.found.condition is Condition.INCOMPLETE
    return is_incomplete and is_trainers(checkpoint.path) and (checkpoint.path / STATE).is_file()


def _from_elsewhere(base: FolderOutlook, source: Path, watch: Watch) -> FolderOutlook:
    """A run that went on from a checkpoint in another folder, and has none of its own yet."""
    reason = f"the run went on from {source}, and has saved nothing since"
    if not source.is_dir():
        problem = f"{source}: there is no such checkpoint, and the run went on from it"
        return replace(base, outcome="failed", exit_code=CheckpointNotFoundError.exit_code, problem=problem)
    if (source / layout.MANIFEST).is_file() and layout.any_step_of(source.resolve().name) is not None:
        return replace(look_ahead(source, watch), folder=base.folder, reason=reason)
    step = read_json(source / STATE).get("global_step")
    notes = (*base.notes, f"{source} was not written by keepstep: its content cannot be verified")
    found = replace(base, outcome="resume", checkpoint=str(source), reason=reason, notes=notes)
    return replace(found, step=step if isinstance(step, int) else 0)


def _newest_good(
    base: FolderOutlook,
    decision: ResumeDecision,
    there: dict[int, SurveyedCheckpoint],
    naming: Naming,
    watch: Watch,
) -> FolderOutlook:
    notes = list(base.notes)
    for step in decision.candidates:
        path, manifest = there[step].path, there[step].manifest
        assert manifest is not None  # candidates are complete
        if damage := _first_damage(path, manifest, watch):
            notes.append(f"{naming.checkpoint_name(step)} is damaged: {damage}; the one before it would be taken")
            continue
        return replace(
            base,
            outcome="resume",
            checkpoint=str(path),
            step=step,
            notes=tuple(notes),
            world_size=manifest.world_size,
            verified=manifest.size,
            record=read_record(path),
            trainer=trainer_facts(path, manifest.files) if naming is layout.TRAINER else None,
        )
    code = DamagedCheckpointError.exit_code
    problem = f"{base.folder}: no checkpoint is complete and unchanged. {'; '.join(notes)}"
    return replace(base, outcome="damaged", exit_code=code, notes=tuple(notes), problem=problem)


def _first_damage(path: Path, manifest: Manifest, watch: Watch) -> str:
    done = 0
    for name in sorted(manifest.files):
        for damage in verify_files(path, manifest, [name]):
            return str(damage)
        done += manifest.files[name].size
        watch(done, manifest.size)
    return ""
