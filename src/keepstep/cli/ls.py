"""`keepstep ls`: list a run's folder."""

from pathlib import Path
from typing import Annotated

import typer

from keepstep.cli.output import human_size, print_json, printable, table
from keepstep.cli.places import folder_of, place_of
from keepstep.ops.lineage import Line, lines_in
from keepstep.ops.listing import Listing, list_folder


def command(
    folder: Annotated[str, typer.Argument(help="A run's folder, or its address on a mirror.")],
    tree: Annotated[bool, typer.Option("--tree", help="Show which line of a run was begun from which.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List checkpoints, oldest first.

    Example: keepstep ls runs/checkpoints/stdlib-lm
    """
    if tree:
        lines = lines_in(folder_of(folder, "lines are told of folders; leave --tree out, or pull the runs first"))
        if as_json:
            print_json(list(lines))
        for line in [] if as_json else lines:
            _print_tree(line)
        return
    listing = _list(folder)
    if as_json:
        print_json(listing)
        return
    if listing.checkpoints:
        print(_table_of(listing))
    elif listing.runs:
        print(f"no checkpoints in {listing.folder} itself; runs with checkpoints: {', '.join(listing.runs)}")
    else:
        print(f"no checkpoints in {listing.folder}")
    for c in listing.checkpoints:
        if c.has_other_pin:
            print(
                f"the pin of step {c.step} is of another checkpoint, whose place this one has taken; "
                f"look for it in {listing.folder}/.keepstep/set-aside"
            )
    if listing.leftovers:
        print(f"left by saves that did not end: {', '.join(listing.leftovers)}")


def _table_of(listing: Listing) -> str:
    rows = [
        (
            str(c.step),
            c.condition + (", pinned" if c.pinned else ""),
            human_size(c.size),
            str(c.world_size or "-"),
            c.created_at or "-",
            c.problem,
            printable(c.note),
        )
        for c in listing.checkpoints
    ]
    header = ("STEP", "STATE", "SIZE", "RANKS", "CREATED", "PROBLEM", "NOTE")
    shown = len(header) if any(c.note for c in listing.checkpoints) else len(header) - 1
    return table(header[:shown], [row[:shown] for row in rows])


def _list(text: str) -> Listing:
    place = place_of(text)
    if isinstance(place, Path):
        return list_folder(place)
    from keepstep.ops.mirror.listing import list_stored

    return list_stored(place)


def _print_tree(line: Line, indent: str = "") -> None:
    """A line, its checkpoints, and under each what was begun from it."""
    print(f"{indent}{printable(line.name)}")
    begun: dict[int, list[Line]] = {}
    for below in line.lines:
        begun.setdefault(int((below.origin or "-0").rpartition("-")[2]), []).append(below)
    for step in sorted({*line.checkpoints, *begun}):
        gone = "" if step in line.checkpoints else "  (not there any more)"
        print(f"{indent}  {line.prefix}-{step}{gone}")
        for below in begun.get(step, []):
            _print_tree(below, f"{indent}    ")
