"""The sections of a report in short, for a terminal."""

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from keepstep.ops.report.shown import shown
from keepstep.plan.report.facts import MIRRORED, SAVED
from keepstep.plan.report.scoreboard import Scoreboard
from keepstep.plan.report.sparkline import sparkline
from keepstep.plan.report.story import RunStory
from keepstep.plan.report.words import counted, number_text, seconds_text, size_text, step_text, time_text

_SPARK_WIDTH = 48
_SERIES, _SAVES, _RANKS, _SCORES, _EVENTS = 4, 5, 6, 4, 5
# No terminal shows more of one text.
_WIDEST = 400
_STATES = {"running": "bold cyan", "finished": "bold green", "complete": "bold green", "failed": "bold red"}


def frame(story: RunStory, steps_per_second: float | None = None) -> RenderableType:
    """One picture of a run.

    Args:
        story: what its folder tells.
        steps_per_second: as seen between two looks; None where only the log of saves tells.
    """
    parts: list[RenderableType] = [_head(story), _progress(story, steps_per_second)]
    parts += [part for part in (_series(story), _saves(story), _ranks(story), _scores(story)) if part is not None]
    parts += [part for part in (_mirrors(story), _events(story)) if part is not None]
    if story.notes:
        parts.append(Text(f"{counted(len(story.notes), 'note')}: keepstep report shows what is missing or odd", "dim"))
    return Group(*(part if at < 2 else Padding(part, (1, 0, 0, 0)) for at, part in enumerate(parts)))


def _head(story: RunStory) -> Text:
    line = Text.assemble(
        (shown(story.name), "bold"), "  ", (shown(story.state), _STATES.get(story.state, "bold yellow"))
    )
    if story.why:
        line.append(f"  {shown(story.why)}", "dim")
    return line


def _progress(story: RunStory, seen: float | None) -> RenderableType:
    pace = seen if seen is not None else 1 / story.seconds_per_step if story.seconds_per_step else None
    words = [f"step {step_text(story.step)}"]
    if story.total_steps:
        words[0] += f" of {step_text(story.total_steps)}"
        if pace and story.step is not None and story.step < story.total_steps:
            words.append(f"{seconds_text((story.total_steps - story.step) / pace)} left")
    if pace is not None:
        words.append(f"{number_text(pace)} steps/s")
    words.append(f"attempt {story.attempts[-1].number}" if story.attempts else "no attempt")
    line = Text(", ".join(words))
    if not story.total_steps or story.step is None:
        return line
    return Group(line, ProgressBar(story.total_steps, min(story.step, story.total_steps), width=_SPARK_WIDTH + 12))


def _series(story: RunStory) -> Table | None:
    drawn = [one for one in story.series if one.last is not None][:_SERIES]
    rows = [(one.name, sparkline(one, _SPARK_WIDTH), number_text(one.last)) for one in drawn]
    return _table(("", "", "LAST"), rows, free=(0,))


def _saves(story: RunStory) -> Table | None:
    times = {(one.attempt, one.step): one.time for one in story.events if one.kind == SAVED}
    rows = [
        (
            step_text(one.step),
            time_text(times.get((one.attempt, one.step))),
            size_text(one.bytes),
            seconds_text(one.stall),
            seconds_text(one.write),
            seconds_text(one.commit),
            "-" if one.slowest_rank is None else str(one.slowest_rank),
        )
        for one in story.saves.saves[: -_SAVES - 1 : -1]
    ]
    return _table(("SAVED", "TIME (UTC)", "SIZE", "WAITED", "WRITE", "COMMIT", "SLOWEST"), rows)


def _ranks(story: RunStory) -> Table | None:
    """Medians over all saves; the slowest first."""
    if len(story.saves.ranks) < 2:
        return None
    ranks = sorted(story.saves.ranks, key=lambda one: -((one.write or 0.0) + (one.sync or 0.0)))[:_RANKS]
    rows = [
        (one.ranks, one.host, *(seconds_text(part) for part in (one.snapshot, one.write, one.sync)), f"{one.slowest:,}")
        for one in ranks
    ]
    return _table(("RANK", "HOST", "SNAPSHOT", "WRITE", "SYNC", "SLOWEST IN SAVES"), rows, free=(1,))


def _scores(story: RunStory) -> RenderableType | None:
    board = story.scores
    series = sorted(board.series, key=lambda one: one.name != board.metric)[:_SCORES]
    rows = []
    for one in series:
        chosen = board.chosen if one.name == board.metric else None
        best = f"step {step_text(chosen.step)}: {number_text(board.value)}" if chosen else ""
        rows.append((one.name, sparkline(one, _SPARK_WIDTH // 2), number_text(one.last), best))
    table = _table(("SCORE", "", "LAST", "CHOSEN"), rows, free=(0,))
    return None if table is None else Group(table, Text(_why(board), "dim"))


def _why(board: Scoreboard) -> str:
    guards = ", ".join(map(str, board.choice.guards if board.choice else ()))
    bounds = f"; guards: {guards}" if guards else ""
    if board.chosen is None:
        return shown(f"nothing is chosen: {board.why_none}{bounds}")
    return shown(f"step {step_text(board.chosen.step)} is chosen: {board.chosen.reason}{bounds}")


def _mirrors(story: RunStory) -> Table | None:
    rows = [(one.address, step_text(one.newest), f"{one.waiting:,}", one.problem or "-") for one in story.mirrors]
    return _table(("MIRROR", "NEWEST", "NOT UPLOADED", "PROBLEM"), rows, free=(0, 3))


def _events(story: RunStory) -> Table | None:
    events = [one for one in story.events if one.kind not in (SAVED, MIRRORED)][: -_EVENTS - 1 : -1]
    rows = [(str(one.attempt or "-"), step_text(one.step), one.kind, one.detail) for one in events]
    return _table(("ATTEMPT", "STEP", "WHAT", "DETAIL"), rows, free=(3,))


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]], free: Sequence[int] = ()) -> Table | None:
    """A table. `free`: columns whose texts are cut where the terminal is narrow; the others keep their width."""
    found = [tuple(_cut(shown(cell)) for cell in row) for row in rows]
    if not found:
        return None
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for at, name in enumerate(header):
        # Columns that may wrap are made narrower before the others are; the texts in them do not wrap all the same.
        table.add_column(name, no_wrap=at not in free, overflow="ellipsis")
    for row in found:
        table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in row))
    return table


def _cut(text: str) -> str:
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"
