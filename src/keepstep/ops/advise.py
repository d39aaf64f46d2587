"""How often a run should save, from what its log of saves tells."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from keepstep.config.checkpointing import DEFAULT_MAX_LOSS_MINUTES, MOST_MINUTES
from keepstep.errors import ConfigError, CouldNotLookError
from keepstep.plan import layout
from keepstep.plan.advice import Advice, Costs, Loss, advise, expected_loss
from keepstep.plan.run_history import Failures, Measured, failures_of, measured_of
from keepstep.storage.exit_note import read_exit
from keepstep.storage.naming import naming_in
from keepstep.storage.plain import NotPlainError, read_plain
from keepstep.storage.run_record import MAX_RECORD, parse_record, read_record
from keepstep.storage.save_log import NAME, SaveLog
from keepstep.storage.survey import survey


@dataclass(frozen=True)
class Given:
    """What is told in place of what was measured, in seconds; None for what was.

    Attributes:
        mtbf_seconds: mean time between failures.
        step_seconds, save_seconds: of one step, and what the job loses by a save.
        max_loss_minutes: a crash is to cost so much at most; None: what the job's configuration says.
    """

    mtbf_seconds: float | None = None
    step_seconds: float | None = None
    save_seconds: float | None = None
    max_loss_minutes: float | None = None


@dataclass(frozen=True)
class AdviceReport:
    """What was measured or given, and what follows.

    Attributes:
        folder: of the run.
        costs: what the advice was made from.
        measured: what recent saves tell.
        failures: how attempts ended.
        is_mtbf_given: the mean time between failures was given; else it was observed, or is not known.
        present_steps: the period that the run has; None when it is not known.
        present_loss: what a day is expected to lose with it.
        advice: the better period.
    """

    folder: str
    costs: Costs
    measured: Measured
    failures: Failures
    is_mtbf_given: bool
    present_steps: int | None
    present_loss: Loss | None
    advice: Advice


def advise_run(folder: Path, given: Given) -> AdviceReport:
    """Look at a run's log and advise.

    Raises:
        CouldNotLookError: there is no such folder, or its log cannot be read.
        ConfigError: the log does not tell enough, and what is missing was not given.
    """
    rows = _rows(folder)
    measured, failures = measured_of(rows), failures_of(rows, has_failed=_has_failed(folder))
    costs = Costs(
        step_seconds=_known(
            folder, "--step-seconds", "how long a step takes", given.step_seconds, measured.step_seconds
        ),
        save_seconds=_known(
            folder, "--save-seconds", "what the job loses by a save", given.save_seconds, measured.save_seconds
        ),
        commit_delay_seconds=measured.commit_delay_seconds,
        restart_seconds=failures.restart_seconds or 0.0,
        mtbf_seconds=given.mtbf_seconds or failures.mtbf_seconds,
    )
    present = measured.period_steps
    return AdviceReport(
        str(folder),
        costs,
        measured,
        failures,
        given.mtbf_seconds is not None,
        present,
        None if present is None else expected_loss(costs, present),
        advise(costs, given.max_loss_minutes or _configured_loss(folder)),
    )


def _rows(folder: Path) -> list[dict[str, Any]]:
    if not folder.is_dir():
        raise CouldNotLookError(f"{folder}: there is no such folder")
    try:
        return SaveLog(folder).rows() or sorted(_records(folder), key=lambda row: (row["time"], row["step"]))
    except OSError as error:
        raise CouldNotLookError(f"cannot read {folder / NAME}: {error}") from error


def _records(folder: Path) -> Iterator[dict[str, Any]]:
    """Where there is no log: when which step was saved, from the run records of checkpoints, Lightning's too."""
    for pattern in (f"*/{layout.RUN_RECORD}", f"{layout.KEEPSTEP_FOLDER}/files/*.run.json"):
        for path in folder.glob(pattern):
            try:
                record = parse_record(read_plain(path, MAX_RECORD))
                time = datetime.fromisoformat(str(record.get("created_at"))).timestamp()
            except (OSError, NotPlainError, ValueError, OverflowError):
                continue
            if type(record.get("step")) is int:
                # Lightning's records number their saves in place of attempts.
                attempt = record.get("attempt") if path.name == layout.RUN_RECORD else 0
                yield {"outcome": "saved", "step": record["step"], "attempt": attempt, "time": time}


def _configured_loss(folder: Path) -> float:
    """`max_loss_minutes` of the job that wrote the newest checkpoint, where its run record has that."""
    complete = survey(folder, naming_in(folder)).complete
    config = read_record(complete[-1].path).get("config") if complete else None
    for kind in ("trainer", "inference"):
        job = config.get(kind) if isinstance(config, dict) else None
        section = job.get("checkpointing") if isinstance(job, dict) else None
        minutes = section.get("max_loss_minutes") if isinstance(section, dict) else None
        if isinstance(minutes, int | float) and 0 < minutes <= MOST_MINUTES:
            return float(minutes)
    return DEFAULT_MAX_LOSS_MINUTES


def _has_failed(folder: Path) -> bool:
    return bool(read_exit(folder).get("outcome") == "failed")


def _known(folder: Path, option: str, what: str, given: float | None, measured: float | None) -> float:
    found = measured if given is None else given
    if found is None or (option == "--step-seconds" and found <= 0):
        why = "does not tell" if (folder / NAME).exists() else "is not there, to tell"
        raise ConfigError(
            f"{folder / NAME} {why} {what}: give {option}, or the folder of a run (<save_dir>/<run.name>) that "
            "has made steps and saves"
        )
    return found
