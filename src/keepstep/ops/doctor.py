"""Examines a folder that is to hold checkpoints, and leaves nothing in it."""

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from keepstep.errors import CouldNotLookError
from keepstep.ops import doctor_probes as probes
from keepstep.ops.doctor_ranks import launched, probe_ranks
from keepstep.ops.doctor_scratch import scratch_folder
from keepstep.ops.doctor_speed import measure_speed
from keepstep.ops.found import survey_run
from keepstep.plan.doctor import Finding, is_fit, judge_folder
from keepstep.plan.doctor_facts import Facts, Tried, Wishes
from keepstep.storage.local import free_bytes
from keepstep.storage.mount import durability_of, existing, mount_of
from keepstep.storage.survey import Survey


@dataclass(frozen=True)
class Diagnosis:
    """What was measured in a folder, what that means, and whether it is fit to hold checkpoints."""

    fit: bool
    findings: tuple[Finding, ...]
    facts: Facts


def examine(folder: Path, wishes: Wishes) -> Diagnosis:
    """Try everything that saves and resumes need. One that is not there yet is examined where it would be made.

    Under torchrun every rank calls it; rank 0 measures, the others only show that they share the folder.

    Args:
        folder: the folder.
        wishes: what it is to be good for.

    Raises:
        CouldNotLookError: it is no folder, or checkpoints in it cannot be looked at.
    """
    place = existing(folder)
    if not place.is_dir():
        raise CouldNotLookError(f"{place} is no folder")
    facts = _measure(_about(folder, place), place, wishes)
    findings = judge_folder(facts, wishes)
    return Diagnosis(is_fit(findings), findings, facts)


def _about(folder: Path, place: Path) -> Facts:
    mount = mount_of(place)
    checkpoints, size = _there(folder)
    return Facts(
        str(folder),
        mount.kind if mount else "",
        mount.source if mount else "",
        durability_of(folder),
        checkpoints=checkpoints,
        checkpoint_size=size,
    )


def _there(folder: Path) -> tuple[int, int | None]:
    """How many checkpoints lie in a run's folder, and bytes of the newest. Of a folder of runs: none, and the largest,
    since a new run needs room of its own."""
    found = survey_run(folder)
    if sizes := _sizes(found):
        return len(sizes), sizes[-1]
    newest = []
    for name in found.foreign:
        with suppress(CouldNotLookError):
            newest += _sizes(survey_run(folder / name))[-1:]
    return 0, max(newest, default=None)


def _sizes(found: Survey) -> list[int]:
    return [checkpoint.manifest.size for checkpoint in found.complete if checkpoint.manifest is not None]


def _measure(facts: Facts, place: Path, wishes: Wishes) -> Facts:
    launch = launched(os.environ)
    try:
        if launch is not None:
            facts = replace(facts, shared=probe_ranks(place, launch))
            if launch.rank:
                return facts
        with scratch_folder(place) as scratch:
            facts = replace(facts, written=probes.try_write(scratch), free=free_bytes(place))
            return facts if facts.written is None or facts.written.problem else _try_all(facts, scratch, wishes)
    except OSError as error:
        return replace(facts, written=Tried(str(error)))


def _try_all(facts: Facts, scratch: Path, wishes: Wishes) -> Facts:
    facts = replace(facts, skew=probes.clock_skew(scratch), synced=probes.try_sync(scratch))
    facts = replace(facts, synced_folder=probes.try_sync_folder(scratch), exchanged=probes.try_exchange(scratch))
    facts = replace(facts, linked=probes.try_link(scratch), direct=probes.try_direct(scratch))
    with probes.reader() as reader:
        facts = replace(facts, seen=reader.new_file(scratch).seen)
        renamed = reader.rename(scratch)
        facts = replace(facts, renamed=renamed.tried, seen_renamed=renamed.seen)
    if not renamed.tried.problem:
        facts = replace(facts, rename_grows=probes.rename_seconds(scratch))
    # What is not there cannot be measured with: a disk that is nearly full is told from the numbers.
    if wishes.amount and (facts.free is None or facts.free > 2 * wishes.amount):
        facts = replace(facts, speed=measure_speed(scratch, wishes.amount))
    return facts
