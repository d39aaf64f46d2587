"""`keepstep top`: a run as it goes, in the terminal."""

from typing import TYPE_CHECKING, Annotated

import typer

from keepstep.cli.best import ModeChoice
from keepstep.cli.places import folder_of

if TYPE_CHECKING:
    from keepstep.plan.report.story import RunStory


def command(
    folder: Annotated[str, typer.Argument(help="A run's folder.")],
    every: Annotated[float, typer.Option("--every", min=0.1, help="Seconds between two looks.")] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print one picture and end; so it is where no terminal is.")
    ] = False,
    metric: Annotated[
        str | None, typer.Option("--metric", help="What decides which checkpoint is the chosen one, as <set>/<metric>.")
    ] = None,
    mode: Annotated[
        ModeChoice | None, typer.Option("--mode", help="max or min; by default the name of the metric tells.")
    ] = None,
    guard: Annotated[
        list[str] | None, typer.Option("--guard", help="A bound that must be kept: 'canary/accuracy>=0.9'. Repeatable.")
    ] = None,
) -> None:
    """Show a run as it goes: step and pace, losses, last saves and their cost, scores, mirrors. Ctrl-C ends it.

    The folder is only read. `keepstep report FOLDER --json` prints the same facts.

    Example: keepstep top runs/checkpoints/stdlib-lm
    """
    import time

    from rich.console import Console
    from rich.live import Live

    from keepstep.config.bounds import parse_guard
    from keepstep.ops.report.gather import gather
    from keepstep.ops.report.logs import RunLogs
    from keepstep.ops.report.terminal import frame
    from keepstep.plan.report.pace import Pace
    from keepstep.plan.report.story import story_of

    place = folder_of(folder, "only a folder can be watched; pull the run first")
    bounds = tuple(parse_guard(one) for one in guard or ())
    logs = RunLogs(place)

    def look() -> "RunStory":
        nonlocal metric, bounds
        story = story_of(gather(place, logs), metric, mode.value if mode else None, bounds)
        if choice := story.scores.choice:
            # What names mean now they mean from now on: with one more set they might mean several metrics.
            metric, bounds = metric and choice.metric, choice.guards
        return story

    console = Console()
    story = look()
    if once or not console.is_terminal:
        console.print(frame(story))
        return
    pace, live = Pace(), Live(frame(story), console=console, screen=True, auto_refresh=False)
    try:
        # Not as a context manager: Ctrl-C while the first picture is drawn must give the terminal back too.
        live.start(refresh=True)
        while True:
            began = time.monotonic()
            story = look()
            live.update(frame(story, pace.seen(began, story.step)), refresh=True)
            # A folder that takes long to read is read more seldom: its job comes first.
            time.sleep(max(every, 4 * (time.monotonic() - began)))
    except KeyboardInterrupt:
        return
    finally:
        live.stop()
