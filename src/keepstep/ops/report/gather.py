"""Gathers what a run's folder tells. Every piece may be missing or damaged: then the report says so."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from keepstep.errors import CouldNotLookError
from keepstep.ops.found import survey_run
from keepstep.ops.report.history import TrainerHistory, of_a_trainer, tracked
from keepstep.ops.report.logs import METRICS, RunLogs, masked
from keepstep.ops.report.named import created_at, named_checkpoints
from keepstep.ops.scoring.places import has_names
from keepstep.plan import layout
from keepstep.plan.fork import Fork
from keepstep.plan.lock import Claim
from keepstep.plan.report.facts import CheckpointFact, Facts, Moved, Row, text, whole
from keepstep.plan.report.logged import Logged
from keepstep.plan.scores import FILE as SCORES
from keepstep.plan.scores import Measured, Score, measured
from keepstep.plan.totals import total_steps_of
from keepstep.storage.candidates import digest_of, digests_of
from keepstep.storage.exit_note import read_exit
from keepstep.storage.json_file import read_json
from keepstep.storage.leases import pinned_steps
from keepstep.storage.line import read_line
from keepstep.storage.lineage import read_forks, read_origin
from keepstep.storage.lock import look_at_lock
from keepstep.storage.run_record import read_record
from keepstep.storage.save_log import NAME as SAVES
from keepstep.storage.scoring.scores import read_scores, unreadable_lines
from keepstep.storage.survey import Survey


def gather(folder: Path, logs: RunLogs | None = None) -> Facts:
    """Look at a run's folder. Nothing is changed, and nothing but that folder is looked at.

    Args:
        folder: of the run.
        logs: its logs as an earlier look has left them, so that only what is new in them is read.

    Raises:
        CouldNotLookError: there is no such folder, or it is one checkpoint, or holds runs and is none itself.
    """
    notes: list[str] = []
    is_named = has_names(folder)
    found = Survey((), (), ()) if is_named else _survey(folder, notes)
    checkpoints, records = named_checkpoints(folder, notes) if is_named else _checkpoints(folder, found)
    logs = logs or RunLogs(folder)
    missing = f"there is no {SAVES}: nothing tells what saves cost, or which failed"
    saves = logs.saves.look(notes, missing).rows
    trainer = TrainerHistory() if is_named else of_a_trainer(folder, checkpoints)
    track, history = tracked(folder, logs, notes), Logged(trainer.logged)
    own = track.series()
    # What both have is the tracker's: its rows are the finer.
    series = {one.name: one for one in (*own, *history.series(), *own)}
    has_rows = bool(track.rows or history.rows)
    if not has_rows and is_named:
        notes.append(f"there is no {METRICS}: Lightning's loggers write losses elsewhere, so they are not known")
    elif not has_rows:
        notes.append(f"there is no {METRICS}, and no history of a Trainer: losses are not known")
    _note_missing_records(checkpoints, records, saves, notes)
    claim, holder = _lock(folder, notes)
    forks, origin = _lines(folder, notes)
    newest = records[max(records)] if records else {}
    return Facts(
        name=text(newest.get("run")) or folder.resolve().name,
        folder=str(folder),
        now=time.time(),
        checkpoints=checkpoints,
        saves=tuple(saves),
        logged=tuple(series.values()),
        logged_step=max((one.step for one in (track, history) if one.step is not None), default=None),
        scores=_scores(folder, trainer.scores, notes),
        trainer=trainer.state,
        records=records,
        exit=masked({**read_exit(folder)}),
        claim=claim,
        holder=holder,
        origin=origin,
        forks=forks,
        moved=_moved(folder, notes),
        leftovers=found.leftovers,
        total_steps=whole(total_steps_of(newest)) or trainer.total_steps,
        notes=tuple(notes),
    )


def _survey(folder: Path, notes: list[str]) -> Survey:
    if not folder.is_dir():
        raise CouldNotLookError(f"{folder}: there is no such folder")
    if layout.any_step_of(folder.resolve().name) is not None and (folder / layout.MANIFEST).is_file():
        raise CouldNotLookError(f"{folder} is one checkpoint; give the folder of its run: {folder.resolve().parent}")
    try:
        found = survey_run(folder)
    except CouldNotLookError as error:
        notes.append(f"checkpoints are not shown: {error}")
        return Survey((), (), ())
    runs = [] if found.checkpoints else [name for name in found.foreign if _is_run(folder / name)]
    if runs and not (folder / SAVES).exists():
        raise CouldNotLookError(f"{folder} is no run itself; runs in it: {', '.join(runs)}")
    if not found.checkpoints:
        notes.append("there is no checkpoint")
    return found


def _is_run(folder: Path) -> bool:
    try:
        return folder.is_dir() and any(layout.any_step_of(name) is not None for name in os.listdir(folder))
    except OSError:
        return False


def _checkpoints(folder: Path, found: Survey) -> tuple[tuple[CheckpointFact, ...], dict[int, Row]]:
    """All checkpoints, and by attempt the run record of its first one."""
    pinned, listed = pinned_steps(folder, digests_of(found.checkpoints)), []
    records: dict[int, Row] = {}
    for one in found.checkpoints:
        record, manifest = read_record(one.path), one.manifest
        attempt = manifest.attempt if manifest else whole(record.get("attempt"))
        if record and attempt is not None and attempt not in records:
            records[attempt] = record
        listed.append(
            CheckpointFact(
                step=one.found.step,
                name=one.path.name,
                condition=one.found.condition.value,
                problem=one.found.problem,
                size=manifest.size if manifest else None,
                world_size=manifest.world_size if manifest else None,
                attempt=attempt,
                parent_step=whole(record.get("parent_step")),
                created_at=created_at(record),
                pinned=one.found.step in pinned,
                digest=digest_of(one),
            )
        )
    return tuple(listed), dict(sorted(records.items()))


def _scores(folder: Path, evaluated: Sequence[Score], notes: list[str]) -> tuple[Measured, ...]:
    try:
        bad = unreadable_lines(folder)
        rows = read_scores(folder)
    except CouldNotLookError as error:
        notes.append(str(error))
        return measured((), evaluated)
    if bad:
        notes.append(f"{SCORES}: {bad:,} lines are no rows; they are left out")
    return measured(rows, evaluated)


def _note_missing_records(
    checkpoints: Sequence[CheckpointFact], records: dict[int, Row], saves: Sequence[Row], notes: list[str]
) -> None:
    attempts = {number for row in saves if (number := whole(row.get("attempt"))) is not None}
    gone = sorted(attempts - records.keys())
    if checkpoints and gone:
        named = ", ".join(map(str, gone[:10])) + (", …" if len(gone) > 10 else "")
        notes.append(f"no checkpoint is left of attempts {named}: their run records are not known")


def _lock(folder: Path, notes: list[str]) -> tuple[Claim, str]:
    try:
        return look_at_lock(folder)
    except OSError as error:
        notes.append(f"whether somebody holds the folder cannot be told: {error}")
        return Claim.GONE, ""


def _lines(folder: Path, notes: list[str]) -> tuple[tuple[Fork, ...], str | None]:
    try:
        line, forks, origin = read_line(folder), read_forks(folder), read_origin(folder)
    except OSError as error:
        notes.append(f"where the run was forked cannot be told: {error}")
        return (), None
    if line is not None:
        there = f" ({line.source})" if line.source else ""
        left = "what earlier attempts saved beyond it is of a line that was left"
        notes.append(f"attempt {line.attempt} went back to step {line.step:,}{there}: {left}")
    return tuple(forks), origin.text if origin else None


def _moved(folder: Path, notes: list[str]) -> tuple[Moved, ...]:
    found = []
    for place, name in ((layout.QUARANTINE, "quarantine"), (layout.SET_ASIDE, "set aside")):
        try:
            entries = sorted(entry.name for entry in os.scandir(folder / place) if entry.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            continue
        except OSError as error:
            notes.append(f"{place} cannot be looked at: {error}")
            continue
        for entry in entries:
            if (step := layout.kept_step(entry)) is not None:
                why = read_json(folder / place / f"{entry}.json")
                attempt = entry.split(".")[1:2]
                number = int(attempt[0]) if attempt and attempt[0].isascii() and attempt[0].isdecimal() else None
                found.append(Moved(step, number, name, text(why.get("problem")) or text(why.get("reason"))))
    return tuple(found)
