"""How checkpoints and lines of runs descend from each other."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keepstep.errors import CouldNotLookError
from keepstep.plan import layout
from keepstep.plan.layout import Naming
from keepstep.storage.lineage import Origin, read_origin
from keepstep.storage.naming import naming_in
from keepstep.storage.run_record import read_record
from keepstep.storage.survey import survey

_LONGEST = 1000


@dataclass(frozen=True)
class Line:
    """A run, or a line of it that was begun from a checkpoint.

    Attributes:
        name: of its folder.
        origin: the checkpoint that it was begun from, `<run>/save-<step>`; None of a run that began at its first step.
        checkpoints: steps of its complete checkpoints, oldest first; that of the origin is not one of its own.
        lines: those that were begun from it.
        prefix: what its checkpoints are called, without the step.
    """

    name: str
    origin: str | None
    checkpoints: tuple[int, ...]
    lines: tuple["Line", ...]
    prefix: str = layout.NATIVE.prefix


def ancestors(checkpoint: Path, step: int) -> tuple[str, ...]:
    """The checkpoints that one goes back to, newest first: `save-<step>`, and `<run>/save-<step>` where a line began.

    One that was deleted since is the last that is known.
    """
    naming, folder = layout.naming_of(checkpoint.name) or layout.NATIVE, checkpoint.parent
    origin = read_origin(folder)
    return follow(step, lambda one: read_record(folder / naming.checkpoint_name(one)), naming, origin, _LONGEST)


def follow(
    step: int, record_of: Callable[[int], dict[str, Any]], naming: Naming, origin: Origin | None, most: int
) -> tuple[str, ...]:
    """Go from parent to parent.

    Args:
        step: of the checkpoint to begin with.
        record_of: the run record of the checkpoint of a step; empty where there is none.
        naming: how checkpoints are called there.
        origin: where the run's line was begun.
        most: so many parents are looked for.
    """
    found: list[str] = []
    while len(found) < most:
        parent = record_of(step).get("parent_step")
        if not isinstance(parent, int) or not 0 <= parent < step:
            break
        if origin is not None and parent == origin.step:
            return (*found, origin.text)
        found.append(naming.checkpoint_name(parent))
        step = parent
    return tuple(found)


def lines_in(folder: Path) -> tuple[Line, ...]:
    """All lines in the folder of runs, or those of one run: that run, and what was begun from it.

    Raises:
        CouldNotLookError: there is no such folder, or it cannot be read.
    """
    if not folder.is_dir():
        raise CouldNotLookError(f"{folder}: there is no such folder")
    if survey(folder, naming_in(folder)).checkpoints:
        known = _known(folder.resolve().parent)
        return (_tree(folder.resolve().name, known, ()),)
    known = _known(folder)
    roots = [name for name, (origin, _, _) in known.items() if origin is None or origin.run not in known]
    lines = [_tree(name, known, ()) for name in roots]
    # Notes that lead in a circle lead to no run: such lines are shown all the same.
    while lost := sorted(known.keys() - {name for line in lines for name in _names(line)}):
        lines.append(_tree(lost[0], known, ()))
    return tuple(lines)


def _names(line: Line) -> Iterator[str]:
    yield line.name
    for below in line.lines:
        yield from _names(below)


_Known = dict[str, tuple[Origin | None, tuple[int, ...], str]]


def _known(folder: Path) -> _Known:
    found: _Known = {}
    for child in sorted(folder.iterdir()):
        if child.is_dir() and not child.is_symlink() and (seen := survey(child, naming_in(child))).checkpoints:
            found[child.name] = (
                read_origin(child),
                tuple(c.found.step for c in seen.complete),
                naming_in(child).prefix,
            )
    return found


def _tree(name: str, known: _Known, above: Sequence[str]) -> Line:
    origin, steps, prefix = known.get(name, (None, (), layout.NATIVE.prefix))
    below = [
        other
        for other, (one, _, _) in known.items()
        if one is not None and one.run == name and other not in (*above, name)
    ]
    own = tuple(step for step in steps if origin is None or step != origin.step)
    return Line(
        name, origin.text if origin else None, own, tuple(_tree(b, known, (*above, name)) for b in below), prefix
    )
