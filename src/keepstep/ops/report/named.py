"""Checkpoints of Lightning's: files and folders of any name, with records in `.keepstep/files`."""

from datetime import datetime
from pathlib import Path

from keepstep.errors import CouldNotLookError
from keepstep.ops.scoring.places import LocalPlace
from keepstep.plan.report.facts import CheckpointFact, Row, text, whole
from keepstep.plan.resume import Condition
from keepstep.storage import named_records
from keepstep.storage.json_file import read_json
from keepstep.storage.leases import pinned_steps


def named_checkpoints(folder: Path, notes: list[str]) -> tuple[tuple[CheckpointFact, ...], dict[int, Row]]:
    """All that have records, by step, and the run record of each save by its number."""
    try:
        found = LocalPlace(folder).checkpoints()
        numbers = named_records.numbers(folder)
    except CouldNotLookError as error:
        notes.append(f"checkpoints are not shown: {error}")
        return (), {}
    pinned, listed = pinned_steps(folder), []
    records: dict[int, Row] = {}
    for one in found:
        number = max(numbers.get(one.name, [0]))
        record = read_json(named_records.facts_path(folder / one.name, number))
        if record:
            records[number] = record
        listed.append(
            CheckpointFact(
                step=one.step,
                name=one.name,
                condition=Condition.COMPLETE.value,
                size=one.size,
                world_size=whole(record.get("world_size")),
                created_at=created_at(record),
                pinned=one.step in pinned,
                digest=one.digest,
            )
        )
    if not listed:
        notes.append("there is no checkpoint with a record")
    return tuple(listed), dict(sorted(records.items()))


def created_at(record: Row) -> float | None:
    """When the checkpoint of a run record was made, in seconds since the epoch; None where it does not say."""
    try:
        return datetime.fromisoformat(text(record.get("created_at"))).timestamp()
    except (ValueError, OverflowError):
        return None
