"""Says what a start of a job would do, and changes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from keepstep.checkpoint.fork import find_line
from keepstep.checkpoint.mirrors.run_mirrors import RunMirrors
from keepstep.checkpoint.resume import Elsewhere, look, refuse
from keepstep.config.job import JobConfig
from keepstep.config.load import parse_job
from keepstep.config.training import InferenceConfig, TrainerConfig
from keepstep.dcp.reader import read_trees
from keepstep.dcp.source import DamageFoundError, Source, open_source
from keepstep.dist.world import SingleWorld
from keepstep.errors import ConfigError, DamagedCheckpointError, GuardRefusedError, KeepstepError, RunInUseError
from keepstep.export.weights import check_target, is_exported
from keepstep.job import configure
from keepstep.job.asked import NOTHING, Asked
from keepstep.job.determinism import seed_all
from keepstep.job.identify import identify
from keepstep.job.protocols import JobContext
from keepstep.job.providers import call, resolve
from keepstep.plan import layout
from keepstep.plan.guard_text import refusal
from keepstep.plan.guards import GuardFinding, refused
from keepstep.plan.lock import Claim
from keepstep.plan.outlook import DataOutlook, RateOutlook, data_outlook, rate_outlook
from keepstep.plan.outputs import SUCCESS
from keepstep.plan.resume import ResumeDecision, Start
from keepstep.state.streams import is_stream
from keepstep.storage.lock import look_at_lock
from keepstep.storage.run_record import read_record
from keepstep.storage.survey import inspect
from keepstep.storage.verify import verify_files

_POSITION = "data.dp_0.samples"


@dataclass(frozen=True)
class Outlook:
    """What a start would do.

    Attributes:
        outcome: "fresh", "resume", "complete" (nothing to do), or "refused", "in use", "damaged", "failed".
        exit_code: with which the job would end at once; 0 when it would run.
        folder: the run's folder.
        checkpoint: from which it would go on; None for a fresh start.
        step: completed steps.
        reason: why this checkpoint, or why none.
        notes: what else is to be known.
        findings: what differs from the checkpoint.
        data: where in the data it would go on; None where the position is not one number.
        remaining_steps: up to the last step; None of an inference job without a known length.
        rate: the learning rates to come, before and now; None where a scheduler of the job's own makes them.
        problem: the error that the start would end with.
    """

    outcome: str
    exit_code: int
    folder: str
    checkpoint: str | None = None
    step: int = 0
    reason: str = ""
    notes: tuple[str, ...] = ()
    findings: tuple[GuardFinding, ...] = ()
    data: DataOutlook | None = None
    remaining_steps: int | None = None
    rate: RateOutlook | None = None
    problem: str = ""


class _PlannedWorld(SingleWorld):
    """One process that answers for a job of so many ranks."""

    def __init__(self, size: int) -> None:
        self.size = size


def can_resume(config: JobConfig, ranks: int, asked: Asked = NOTHING) -> Outlook:
    """Look where a job would start with this configuration on so many ranks.

    The providers of data set and task are called, since they say what the data is; the model is not built, and no
    weight is loaded. Bytes are compared with their digests when a checkpoint is loaded, and not here.

    Raises:
        ConfigError: the configuration cannot work.
        KeepstepError: the folder, the data or the base weights cannot be read.
    """
    configure.check(config, ranks)
    folder = configure.run_folder(config)
    line = None
    if asked.from_step is not None:
        if config.trainer is None:
            raise ConfigError("--from: an inference job has one line only")
        line = find_line(folder, asked.from_step, _PlannedWorld(ranks))
        folder, line = (line.folder, None) if line.is_begun else (folder, line)
    try:
        # Nothing may be written, so what only a mirror has is looked at where it lies.
        brought = () if line is not None else _mirrors(config, folder, ranks).bring(None)
        decision = look(folder, _PlannedWorld(ranks), line.fork.step if line else None)
    except KeepstepError as error:
        return Outlook("failed", error.exit_code, str(folder), problem=str(error))
    try:
        if not brought:
            refuse(folder, decision)
        if _section(config).checkpointing.on_damage == "stop" and decision.damaged:
            worst = decision.damaged[0]
            raise DamagedCheckpointError(f"{folder / layout.checkpoint_name(worst.step)} is damaged: {worst.problem}")
    except KeepstepError as error:
        outcome = "damaged" if isinstance(error, DamagedCheckpointError) else "failed"
        return Outlook(outcome, error.exit_code, str(folder), reason=decision.reason, problem=str(error))
    notes = [f"save-{found.step} is passed over: {found.problem}" for found in decision.ignored]
    if line is not None:
        notes.append(f"another line of the run is begun: {line.folder}; later checkpoints stay where they are")
    if brought:
        notes.append(f"step {brought[0].step} is fetched from {brought[0].where}")
    elif (over := _completed(config, folder, decision, notes)) is not None:
        return over
    # Another line has a folder of its own, which nobody holds.
    claim, holder = look_at_lock(folder) if line is None else (Claim.GONE, "")
    if claim is Claim.UNKNOWN:
        notes.append(f"{holder} may hold the folder: the start waits for a sign of life of it")
    job = _Job(config, folder, ranks, asked, is_resumed=bool(brought) or decision.start is Start.RESUME)
    found = job.fresh(decision.reason, notes)
    if brought:
        found = job.elsewhere(brought, notes)
    elif decision.start is Start.RESUME:
        found = job.at(decision.candidates, decision.reason, notes)
    if claim is Claim.HELD and found.exit_code == 0 and found.outcome != "complete":
        code, problem = RunInUseError.exit_code, f"{folder} is in use by {holder}"
        return replace(found, outcome="in use", exit_code=code, problem=problem)
    return found


def _completed(config: JobConfig, folder: Path, decision: ResumeDecision, notes: Sequence[str]) -> Outlook | None:
    """A training whose last step is saved: nothing of it would go on, so nothing is judged, and no provider called."""
    trainer = config.trainer
    if trainer is None or decision.start is not Start.RESUME or decision.candidates[0] < trainer.total_steps:
        return None
    checkpoint = folder / layout.checkpoint_name(decision.candidates[0])
    target = configure.export_target(trainer, folder)
    if target is not None and not is_exported(checkpoint, target):
        check_target(target)
        notes = [*notes, f"the export {target} is missing, and is made"]
    step = decision.candidates[0]
    return Outlook("complete", 0, str(folder), str(checkpoint), step, decision.reason, tuple(notes), remaining_steps=0)


def _mirrors(config: JobConfig, folder: Path, ranks: int) -> RunMirrors:
    name = folder.name if config.trainer is not None else configure.shard_name(config)
    return RunMirrors(_section(config).checkpointing.mirror, folder, name, _PlannedWorld(ranks))


def _section(config: JobConfig) -> TrainerConfig | InferenceConfig:
    section = config.trainer or config.inference
    assert section is not None  # `configure.check` has seen to it
    return section


class _Job:
    """What of a job must be there to say how it would go on."""

    def __init__(self, config: JobConfig, folder: Path, ranks: int, asked: Asked, *, is_resumed: bool) -> None:
        section = _section(config)
        self._config, self._folder = config, folder
        shape, _ = configure.divide_batches(section.batching, config.mesh, ranks)
        if config.trainer is not None:
            configure.check_targets(config.trainer, folder, fresh=not is_resumed)
        self._batch = section.batching.global_batch_size
        context = JobContext(config, torch.device("cpu"), 0, ranks, 0, shape.data_parallel)
        seed_all(section.determinism.base_seed)
        providers = resolve(config.providers)
        dataset = call("providers.dataset", config.providers.dataset, providers.dataset, context)
        if config.inference is not None:
            configure.check_inference(config, shape, dataset)
            configure.check_division(config.inference)
        task = call("providers.task", config.providers.task, providers.task, context)
        self._length = None if is_stream(dataset) else len(dataset)
        self._span = configure.span_of(config, self._length)
        world = _PlannedWorld(ranks)
        self._identity = identify(config, folder, world, shape, dataset, task, asked, is_resumed=is_resumed)

    def fresh(self, reason: str, notes: Sequence[str]) -> Outlook:
        """It would begin with the first step."""
        rate = rate_outlook(None, self._config, 0)
        left = self._steps_left(0, 0)
        return Outlook("fresh", 0, str(self._folder), None, 0, reason, tuple(notes), (), None, left, rate)

    def at(self, candidates: Sequence[int], reason: str, notes: Sequence[str]) -> Outlook:
        """It would go on from the first of these steps that can be read."""
        found = list(notes)
        for step in candidates:
            checkpoint = self._folder / layout.checkpoint_name(step)
            try:
                _check_record(checkpoint)
                samples = _position(checkpoint)
            except DamagedCheckpointError as error:
                found.append(f"{error}; the checkpoint before it would be taken")
                continue
            return self._from(str(checkpoint), read_record(checkpoint), step, samples, reason, found)
        return self._damaged(reason, found)

    def elsewhere(self, brought: Sequence[Elsewhere], notes: Sequence[str]) -> Outlook:
        """It would go on from the first of these that can be read, on a mirror."""
        found, reason = list(notes), "a mirror has a newer checkpoint than the folder"
        for one in brought:
            self._identity.know(one.step, one.where, one.record)
            try:
                with Source(one.files(), one.manifest) as source:
                    samples = _position_in(source)
            except DamageFoundError as error:
                found.append(f"{one.where} is damaged: {error}; the checkpoint before it would be taken")
                continue
            return self._from(one.where, dict(one.record), one.step, samples, reason, found)
        return self._damaged(reason, found)

    def _damaged(self, reason: str, found: Sequence[str]) -> Outlook:
        problem = "; ".join(found)
        code = DamagedCheckpointError.exit_code
        return Outlook("damaged", code, str(self._folder), reason=reason, notes=tuple(found), problem=problem)

    def _from(
        self,
        checkpoint: str,
        record: dict[str, Any],
        step: int,
        samples: int | None,
        reason: str,
        notes: Sequence[str],
    ) -> Outlook:
        left = self._steps_left(step, samples)
        data = None
        if samples is not None and self._length:
            batch = record.get("global_batch_size")
            data = data_outlook(samples, self._length, batch if isinstance(batch, int) else None, self._batch)
        rate = rate_outlook(_config_of(record), self._config, step)
        is_over = left is not None and left <= 0
        findings = self._identity.compare(step)
        output = self._config.inference.output_to if self._config.inference else None
        if is_over and output is not None and not Path(output).is_file():
            notes = [*notes, f"the output {output} is missing, and is written"]
        outputs = self._config.inference.outputs if self._config.inference else None
        if is_over and outputs is not None and not (Path(outputs.to) / SUCCESS).is_file():
            notes = [*notes, f"the outputs in {outputs.to} are not finished: {SUCCESS} is made"]
        outlook = Outlook(
            "complete" if is_over else "resume",
            0,
            str(self._folder),
            checkpoint,
            step,
            reason,
            tuple(notes),
            findings,
            data,
            None if left is None else max(0, left),
            rate,
        )
        if not refused(findings):
            return outlook
        problem = refusal(checkpoint, findings)
        return replace(outlook, outcome="refused", exit_code=GuardRefusedError.exit_code, problem=problem)

    def _steps_left(self, step: int, samples: int | None) -> int | None:
        if self._config.trainer is not None:
            return self._config.trainer.total_steps - step
        if self._span is None or samples is None:
            return None
        return -(-(self._span[1] - max(samples, self._span[0])) // self._batch)


def _check_record(checkpoint: Path) -> None:
    manifest = inspect(checkpoint, layout.step_of(checkpoint.name) or 0).manifest
    for damage in verify_files(checkpoint, manifest, [layout.RUN_RECORD]) if manifest else ():
        raise DamagedCheckpointError(f"{checkpoint} is damaged: {damage}")


def _position(checkpoint: Path) -> int | None:
    """The samples that were consumed; None where a checkpoint does not say it. Raises DamagedCheckpointError."""
    with open_source(checkpoint) as source:
        try:
            return _position_in(source)
        except DamageFoundError as error:
            raise DamagedCheckpointError(f"{checkpoint} is damaged: {error}") from error


def _position_in(source: Source) -> int | None:
    """The same of an open checkpoint. Raises DamageFoundError."""
    if _POSITION not in source.stored():
        return None
    value = read_trees(source, [_POSITION])[_POSITION]
    return value if isinstance(value, int) and value >= 0 else None


def _config_of(record: dict[str, Any]) -> JobConfig | None:
    """The configuration that a checkpoint was saved with; None when this version cannot read it."""
    content = record.get("config")
    if not isinstance(content, dict):
        return None
    try:
        return parse_job(content)
    except ConfigError:
        return None
