"""Goes back to an earlier checkpoint without touching later ones: a line of its own, in a folder beside the run's."""

import json
import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from keepstep.checkpoint.claim import FolderClaim
from keepstep.checkpoint.fresh import submission
from keepstep.dist.agree import agreed
from keepstep.dist.world import World
from keepstep.errors import ResumeError
from keepstep.plan import layout
from keepstep.plan.fork import Fork, choose_fork
from keepstep.storage.exit_note import read_exit
from keepstep.storage.ledger import ledger_folder
from keepstep.storage.lineage import FORKS, Origin, note_fork, note_origin, read_forks, read_origin
from keepstep.storage.local import NO_LINKS, make_folders, publish, remove_tree, replace_text, sync_folder
from keepstep.storage.survey import inspect

logger = logging.getLogger("keepstep")

_METRICS = "metrics.jsonl"


@dataclass(frozen=True)
class Line:
    """A line of a run that was begun from one of its checkpoints, or is to be.

    Attributes:
        parent: the run's folder.
        fork: name and step.
        is_begun: whether it lies in its folder already.
    """

    parent: Path
    fork: Fork
    is_begun: bool

    @property
    def folder(self) -> Path:
        """The line's own folder."""
        return self.parent.parent / self.fork.name


def find_line(parent: Path, step: int, world: World) -> Line:
    """The line that a request to go back to `step` means. Collective, changes nothing.

    Raises:
        ResumeError: the run's folder cannot be read.
    """
    with agreed(world, f"looking for lines that were begun from {parent}", ResumeError):
        line = _find(parent, step) if world.rank == 0 else None
    found: Line | None = world.broadcast(line)
    assert found is not None
    return found


def announce_line(line: Line, world: World) -> Line:
    """Note in the run's folder that the line is begun. Collective, and before the line's folder is made: an attempt
    that dies on the way is followed by one that goes on with the same name.

    Returns:
        The line; another one when its name was taken in the meantime.

    Raises:
        ResumeError: the note cannot be written.
    """
    with agreed(world, f"noting in {line.parent} that {line.fork.name} is begun", ResumeError):
        while world.rank == 0 and line.fork not in read_forks(line.parent):
            try:
                note_fork(line.parent, line.fork)
            except FileExistsError:
                line = _find(line.parent, line.fork.step)
    return world.broadcast(line)


def begin_line(line: Line, claim: FolderClaim, world: World) -> None:
    """Put the checkpoint, and the history up to it, into the line's folder, which is held. Collective.

    Checkpoints are written once, so links to their files do: they take no space, and stay when the run deletes its own.

    Raises:
        ResumeError: that failed; the same command tries again.
    """
    with agreed(world, f"beginning {line.folder} from save-{line.fork.step} of {line.parent}", ResumeError):
        if world.rank == 0:
            _begin(line, claim)


def _find(parent: Path, step: int) -> Line:
    known = read_forks(parent)
    beside = os.listdir(parent.parent) if parent.parent.is_dir() else []
    noted = parent / layout.KEEPSTEP_FOLDER / FORKS
    beside += [name.removesuffix(".json") for name in os.listdir(noted)] if noted.is_dir() else []
    finished = [f.name for f in known if read_exit(parent.parent / f.name).get("outcome") == "finished"]
    fork, is_new = choose_fork(parent.name, step, submission(), known, finished=finished, taken=beside)
    origin = Origin(parent.name, step)
    return Line(parent, fork, not is_new and read_origin(parent.parent / fork.name) == origin)


def _begin(line: Line, claim: FolderClaim) -> None:
    name = layout.checkpoint_name(line.fork.step)
    target = line.folder / name
    if not target.exists():
        temporary = line.folder / layout.temporary_name(line.fork.step, claim.attempt)
        remove_tree(temporary)
        temporary.mkdir()
        for file in _own_files(line.parent / name, line.fork.step):
            _link(line.parent / name / file, temporary / file)
        sync_folder(temporary)
        claim.confirm()
        publish(temporary, target)
    _copy_history(line)
    # Written last: a folder with this note is a whole beginning.
    note_origin(line.folder, Origin(line.parent.name, line.fork.step))
    logger.warning(
        "went back to step %d of %s: this line of the run is %s, later checkpoints stay where they are",
        line.fork.step,
        line.parent,
        line.folder,
    )


def _own_files(checkpoint: Path, step: int) -> list[str]:
    """What the manifest names, and itself. What others put beside (that it is scored) says nothing of the new line."""
    manifest = inspect(checkpoint, step).manifest
    if manifest is None:
        raise FileNotFoundError(f"{checkpoint} has gone, or has no manifest any more")
    return [*sorted(manifest.files), layout.MANIFEST]


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        with source.open("rb") as file, target.open("xb") as copy:
            shutil.copyfileobj(file, copy, 8 * 1024 * 1024)
            copy.flush()
            os.fsync(copy.fileno())


def _copy_history(line: Line) -> None:
    """The rows of the tracker up to the checkpoint, and the ledger, which is cut at the first step."""
    metrics = line.parent / _METRICS
    if metrics.is_file():
        rows = metrics.read_text(encoding="utf-8").splitlines(keepends=True)
        replace_text(line.folder / _METRICS, "".join(row for row in rows if _step_of(row) <= line.fork.step))
    ledger = ledger_folder(line.parent)
    if ledger.is_dir():
        make_folders(ledger_folder(line.folder))
        for file in ledger.iterdir():
            shutil.copyfile(file, ledger_folder(line.folder) / file.name)


def _step_of(row: str) -> float:
    try:
        step = json.loads(row).get("step", 0)
    except (ValueError, AttributeError):
        return float("inf")  # torn by a crash, so it is none of the history
    return step if isinstance(step, int) else 0
