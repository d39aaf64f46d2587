"""Lists a run's folder."""

from dataclasses import dataclass
from pathlib import Path

from keepstep.errors import CouldNotLookError
from keepstep.ops.found import survey_run
from keepstep.plan import layout
from keepstep.storage.candidates import digest_of
from keepstep.storage.leases import Pin, pins
from keepstep.storage.run_record import read_record
from keepstep.storage.survey import SurveyedCheckpoint


@dataclass(frozen=True)
class ListedCheckpoint:
    """A checkpoint's folder.

    Attributes:
        problem: empty for a complete one.
        note: what its pin says.
        has_other_pin: whether a pin of its step is of another checkpoint, whose place it has taken: that was set aside.
    """

    step: int
    path: str
    condition: str
    problem: str
    size: int | None
    world_size: int | None
    attempt: int | None
    created_at: str | None
    pinned: bool = False
    note: str = ""
    has_other_pin: bool = False


@dataclass(frozen=True)
class Listing:
    """A run's folder. `runs` are folders inside it that hold checkpoints themselves."""

    folder: str
    checkpoints: tuple[ListedCheckpoint, ...]
    leftovers: tuple[str, ...]
    foreign: tuple[str, ...]
    runs: tuple[str, ...]


def list_folder(folder: Path) -> Listing:
    """List checkpoints, oldest first, complete or not.

    Raises:
        CouldNotLookError: there is no such folder, or it cannot be read.
    """
    if not folder.exists():
        raise CouldNotLookError(f"{folder}: there is no such folder")
    if layout.any_step_of(folder.resolve().name) is not None and (folder / layout.MANIFEST).is_file():
        raise CouldNotLookError(f"{folder} is one checkpoint; `keepstep show` describes it")
    found = survey_run(folder)
    pinned = pins(folder)
    listed = tuple(_listed(checkpoint, pinned.get(checkpoint.found.step)) for checkpoint in found.checkpoints)
    runs = () if listed else tuple(name for name in found.foreign if _holds_checkpoints(folder / name))
    return Listing(str(folder), listed, found.leftovers, found.foreign, runs)


def _listed(checkpoint: SurveyedCheckpoint, pin: Pin | None) -> ListedCheckpoint:
    manifest, found = checkpoint.manifest, checkpoint.found
    created_at = read_record(checkpoint.path).get("created_at")
    is_pinned = pin is not None and (not pin.digest or pin.is_of(digest_of(checkpoint)))
    return ListedCheckpoint(
        step=found.step,
        path=str(checkpoint.path),
        condition=found.condition.value,
        problem=found.problem,
        size=manifest.size if manifest else None,
        world_size=manifest.world_size if manifest else None,
        attempt=manifest.attempt if manifest else None,
        created_at=created_at if isinstance(created_at, str) else None,
        pinned=is_pinned,
        note=pin.note if pin is not None and is_pinned else "",
        has_other_pin=pin is not None and not is_pinned,
    )


def _holds_checkpoints(folder: Path) -> bool:
    return folder.is_dir() and any(layout.any_step_of(child.name) is not None for child in folder.iterdir())
