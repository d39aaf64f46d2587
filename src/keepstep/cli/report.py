"""`keepstep report`: a run's folder as one page."""

from pathlib import Path
from typing import Annotated

import typer

from keepstep.cli.best import ModeChoice
from keepstep.cli.output import human_size, printable
from keepstep.cli.places import folder_of


def command(
    folder: Annotated[str, typer.Argument(help="A run's folder.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Where the page goes. Of files only a page is replaced.")
    ] = Path("report.html"),
    metric: Annotated[
        str | None, typer.Option("--metric", help="What decides which checkpoint is the chosen one, as <set>/<metric>.")
    ] = None,
    mode: Annotated[
        ModeChoice | None, typer.Option("--mode", help="max or min; by default the name of the metric tells.")
    ] = None,
    guard: Annotated[
        list[str] | None, typer.Option("--guard", help="A bound that must be kept: 'canary/accuracy>=0.9'. Repeatable.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what the page tells as JSON, and write no page.")
    ] = False,
) -> None:
    """Write a page about a run: its time line, losses, scores, what saves cost, mirrors, and what changed.

    The page is one file that loads nothing: it can be sent, archived and opened anywhere.

    Example: keepstep report runs/checkpoints/stdlib-lm -o report.html
    """
    import json
    import sys

    from keepstep.cli.progress import Bar
    from keepstep.config.bounds import parse_guard
    from keepstep.ops.report.gather import gather
    from keepstep.ops.report.page import render
    from keepstep.ops.report.write import check_target, facts_of, is_stream, write_page
    from keepstep.plan.report.story import story_of

    place = folder_of(folder, "a report is made of a folder; pull the run first")
    bounds = [parse_guard(one) for one in guard or ()]
    if not as_json:
        check_target(out, place)
    story = story_of(gather(place), metric, mode.value if mode else None, bounds)
    if as_json:
        print(json.dumps(facts_of(story), indent=1))
        return
    with Bar("drawing") as bar:
        page = render(story, bar)
    size = write_page(out, page, place)
    # The stream may be stdout.
    where = sys.stderr if is_stream(out) else sys.stdout
    print(f"{printable(str(out))}: {human_size(size)}, {printable(story.name)} is {printable(story.state)}", file=where)
