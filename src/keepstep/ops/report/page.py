"""The page: one HTML file that loads nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from keepstep.errors import ConfigError
from keepstep.ops.report.chart import Chart
from keepstep.ops.report.charts import cost_chart, line_chart, rank_chart, score_chart, size_chart
from keepstep.ops.report.shown import shown
from keepstep.ops.report.svg import DrawingError, draw
from keepstep.ops.report.tables import (
    Table,
    attempts,
    changes,
    checkpoints,
    events,
    fields,
    mirrors,
    ranks,
    saves,
    scores,
)
from keepstep.ops.report.time_line import time_line
from keepstep.plan.report.scoreboard import Scoreboard
from keepstep.plan.report.series import Series
from keepstep.plan.report.story import RunStory
from keepstep.plan.report.words import time_text

# More pictures of one kind than this are a table alone.
_MOST_CHARTS = 12
_TEMPLATE = "page.html.jinja"


@dataclass(frozen=True)
class Drawn:
    """A chart, and its picture for each width."""

    chart: Chart
    pictures: dict[str, Any]


@dataclass(frozen=True)
class Section:
    """A part of the page. `empty` is said where it has nothing to show."""

    name: str
    title: str
    charts: tuple[Drawn, ...]
    tables: tuple[Table, ...]
    remarks: tuple[str, ...] = ()
    empty: str = ""


def render(story: RunStory, watch: Callable[[int, int], None] = lambda done, total: None) -> str:
    """The page of a run.

    Args:
        story: what it tells.
        watch: told how many of how many pictures are drawn.

    Raises:
        ConfigError: what draws is not installed.
    """
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise ConfigError('the report needs more packages: pip install "keepstep[report]"') from None
    planned = _planned(story)
    total, done = sum(len(charts) for _, charts in planned), 0
    sections = []
    for section, charts in planned:
        drawn = []
        for chart in charts:
            drawn.append(_drawn(chart))
            done += 1
            watch(done, total)
        sections.append(Section(**{**vars(section), "charts": tuple(drawn)}))
    # All text that comes from files is escaped by the environment; only pictures are taken as they are.
    environment = Environment(
        loader=PackageLoader("keepstep.ops.report", "."),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template(_TEMPLATE)
    return page.render(story=story, sections=sections, written=time_text(story.now))


def _drawn(chart: Chart) -> Drawn:
    from markupsafe import Markup

    try:
        pictures = {name: Markup(draw(chart.spec(width), chart.label)) for name, width in chart.widths.items()}
    except DrawingError as error:
        note = f"it cannot be drawn, and is a table alone: {error}"
        return Drawn(replace(chart, note="; ".join(filter(None, (chart.note, note)))), {})
    return Drawn(chart, pictures)


def _shown(value: Any) -> Any:
    # A picture is of the type `Markup`, and stays as it is.
    return shown(value) if type(value) is str else value


def _planned(story: RunStory) -> list[tuple[Section, list[Chart]]]:
    """Sections without their pictures, and what is to be drawn in each."""
    board, costs, record = story.scores, story.saves, story.record
    logged = [line_chart(f"logged-{n}", one) for n, one in enumerate(_drawable(story.series))]
    measured = [score_chart(f"score-{n}", one, board) for n, one in enumerate(_drawable(board.series))]
    cost = [cost_chart(costs.series)] if costs.series else []
    by_rank = [rank_chart(costs.ranks)] if len(costs.ranks) > 1 else []
    size = [size_chart(story.sizes)] if story.sizes.count else []
    return [
        (
            Section("time-line", "Time line", (), (attempts(story), events(story)), empty="Nothing has happened yet."),
            [time_line(story.attempts, story.events)] if story.attempts else [],
        ),
        (Section("training", "Training", (), (), _not_drawn(story.series), "No losses were written down."), logged),
        (
            Section(
                "scores",
                "Scores",
                (),
                (scores(story),),
                (*_choice(board), *_not_drawn(board.series), *board.problems[:20], *_more(board.problems)),
                board.why_none or "No scores.",
            ),
            measured,
        ),
        (
            Section("saves", "Cost of saves", (), (ranks(story), saves(story)), empty="No save is written down."),
            [*cost, *by_rank],
        ),
        (Section("checkpoints", "Checkpoints", (), (checkpoints(story),), _left(story), "There is none."), size),
        (Section("mirrors", "Mirrors", (), (mirrors(story),), empty="No upload is written down."), []),
        (
            Section(
                "record",
                "Run record",
                (),
                (changes(story), fields(story, record.fields, "Record"), fields(story, record.config, "Configuration")),
                empty="No run record is known.",
            ),
            [],
        ),
    ]


def _choice(board: Scoreboard) -> tuple[str, ...]:
    """Which checkpoint is the chosen one, and why."""
    if board.choice is None:
        return ()
    guards = ", ".join(map(str, board.choice.guards))
    why = f"{board.source} says so" if board.source else "nothing else was asked for"
    said = "" if board.asked else f" {board.metric} decides as {why}."
    what = f"Step {board.chosen.step:,} is chosen: {board.chosen.reason}." if board.chosen else ""
    return (
        (what or f"Nothing is chosen by {board.metric}: {board.why_none}.") + said,
        *([f"Guards: {guards}."] if guards else []),
    )


def _drawable(series: Sequence[Series]) -> list[Series]:
    return [one for one in series if one.last is not None][:_MOST_CHARTS]


def _not_drawn(series: Sequence[Series]) -> tuple[str, ...]:
    drawn = _drawable(series)
    names = [one.name for one in series if one not in drawn]
    return (f"Not drawn: {', '.join(names)}.",) if names else ()


def _more(problems: Sequence[str]) -> tuple[str, ...]:
    return (f"{len(problems) - 20:,} more remarks like these.",) if len(problems) > 20 else ()


def _left(story: RunStory) -> tuple[str, ...]:
    return (f"Left by saves that did not end: {', '.join(story.leftovers)}.",) if story.leftovers else ()
