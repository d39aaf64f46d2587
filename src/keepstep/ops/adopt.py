"""Makes checkpoints that a Trainer wrote alone into ones with digests, a run record and a manifest."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from keepstep.errors import CheckpointNotFoundError, ConfigError, CouldNotLookError, RunInUseError
from keepstep.ops.trainer_look import look_at, own_names
from keepstep.plan import layout
from keepstep.plan.adopt import AdoptVerdict, adopted_record, judge
from keepstep.plan.lock import Claim
from keepstep.plan.manifest import FileRecord, Manifest, manifest_digest, to_text
from keepstep.plan.trainer_files import ADAPTER_CONFIG, STATE
from keepstep.provenance.secrets import masked_text
from keepstep.storage.digest import digest_of_bytes
from keepstep.storage.folder_files import digest_and_sync, files_below, folders_below
from keepstep.storage.json_file import read_json
from keepstep.storage.leases import pin_anew
from keepstep.storage.local import replace_text, sync_folder
from keepstep.storage.lock import RunLock, acquire_lock, look_at_lock
from keepstep.storage.naming import naming_in
from keepstep.storage.survey import survey

# Told how many bytes of how many were dealt with.
Watch = Callable[[int, int], object]


@dataclass(frozen=True)
class AdoptPlan:
    """What becomes of the checkpoints of a folder, oldest first."""

    folder: str
    verdicts: tuple[AdoptVerdict, ...]

    @property
    def refused(self) -> tuple[AdoptVerdict, ...]:
        """Those that are not, and do not become, keepstep's."""
        return tuple(one for one in self.verdicts if one.action == "refuse")


@dataclass(frozen=True)
class Adopted:
    """What an adoption did. `failed` says of steps why what was to be adopted was not."""

    plan: AdoptPlan
    steps: tuple[int, ...]
    failed: dict[int, str]


def plan_adopt(path: Path) -> AdoptPlan:
    """Look at the checkpoints of a Trainer, all in a folder or one, and decide. Changes nothing, and runs nothing.

    Raises:
        CheckpointNotFoundError: there is none.
        ConfigError: the folder's checkpoints are keepstep's own.
        CouldNotLookError: something cannot be read.
    """
    only = layout.TRAINER.step_of(path.resolve().name)
    folder = path if only is None else path.resolve().parent
    if not folder.is_dir():
        raise CouldNotLookError(f"{folder}: there is no such folder")
    if naming_in(folder) is not layout.TRAINER and survey(folder).checkpoints:
        raise ConfigError(f"{folder} holds checkpoints of keepstep (save-<step>); there is nothing to adopt")
    there = [one for one in survey(folder, layout.TRAINER).checkpoints if only in (None, one.found.step)]
    if not there:
        raise CheckpointNotFoundError(f"{path}: no checkpoint-<step> folder of a Trainer there")
    try:
        return AdoptPlan(str(folder), tuple(judge(look_at(one)) for one in there))
    except OSError as error:
        raise CouldNotLookError(f"cannot look into {folder}: {error}") from error


def check_free(folder: Path) -> None:
    """Raise RunInUseError where a job of keepstep's is at work in a folder, as far as can be told at once."""
    claim, holder = look_at_lock(folder)
    if claim is Claim.HELD:
        raise RunInUseError(f"{folder} is in use by {holder}; adopt when that job has ended")


def apply_adopt(plan: AdoptPlan, watch: Watch = lambda done, total: None) -> Adopted:
    """Digest and sync what is to be adopted, and commit it: the manifest comes last. The run is held meanwhile.

    Args:
        plan: what to do.
        watch: told of the progress, in bytes.

    Raises:
        RunInUseError: a job is at work in the folder, or has taken it over.
        OSError: the folder cannot be written.
    """
    chosen = [one for one in plan.verdicts if one.action == "adopt"]
    if not chosen:
        return Adopted(plan, (), {})
    folder = Path(plan.folder)
    done, total = 0, sum(one.size for one in chosen)

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        watch(done, total)

    steps: list[int] = []
    failed: dict[int, str] = {}
    lock = acquire_lock(folder)
    try:
        for verdict in chosen:
            try:
                _adopt(folder / layout.TRAINER.checkpoint_name(verdict.step), verdict, lock, on_bytes)
                steps.append(verdict.step)
            except (OSError, ValueError) as error:
                failed[verdict.step] = str(error)
    finally:
        lock.release()
    return Adopted(plan, tuple(steps), failed)


def _adopt(path: Path, verdict: AdoptVerdict, lock: RunLock, on_bytes: Callable[[int], object]) -> None:
    """Commit one checkpoint. Raises OSError, ValueError; also where its files change meanwhile."""
    times = path.stat()
    for name in own_names(path) - {layout.RUN_RECORD}:
        (path / name).unlink()
    before = _stamps(path)
    files = digest_and_sync(path, list(before), on_bytes)
    for folder in folders_below(path):
        sync_folder(folder)
    if _stamps(path) != before or sum(record.size for record in files.values()) != verdict.size:
        raise OSError("its files changed while they were read; adopt it when nothing writes there any more")
    record = _record(path, verdict, lock.number)
    lock.confirm()
    replace_text(path / layout.RUN_RECORD, record)
    files[layout.RUN_RECORD] = FileRecord(len(record.encode()), digest_of_bytes(record.encode()))
    manifest = Manifest(verdict.step, lock.number, verdict.world_size, verdict.components, files)
    replace_text(path / layout.MANIFEST, to_text(manifest, digest_of_bytes))
    pin_anew(path.parent, verdict.step, manifest_digest(manifest, digest_of_bytes))
    # A Trainer rotates its checkpoints by these times.
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    sync_folder(path.parent)


def _stamps(path: Path) -> dict[str, tuple[int, int]]:
    """Size and time of each file."""
    names = [name for name, _ in files_below(path, own_names(path) | {layout.SCORE_MARK})]
    return {name: (found.st_size, found.st_mtime_ns) for name in names for found in [os.lstat(path / name)]}


def _record(path: Path, verdict: AdoptVerdict, attempt: int) -> str:
    """What is known of the checkpoint, as JSON."""
    saved = datetime.fromtimestamp(os.lstat(path / STATE).st_mtime, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    base = read_json(path / ADAPTER_CONFIG).get("base_model_name_or_path")
    version = read_json(path / "config.json").get("transformers_version")
    record = adopted_record(
        step=verdict.step,
        attempt=attempt,
        created_at=saved,
        world_size=verdict.world_size,
        base_model=masked_text(base) if isinstance(base, str) else None,
        transformers=version if isinstance(version, str) else None,
    )
    return json.dumps(record, indent=1) + "\n"
