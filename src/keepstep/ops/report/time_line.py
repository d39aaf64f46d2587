"""The time line: attempts over steps, and what happened in them."""

from collections.abc import Sequence

from keepstep.ops.report.chart import STEPS, TEXT, Chart, frame
from keepstep.plan.report.attempts import Attempt
from keepstep.plan.report.events import CLOCK, DIED, ENDED, FORKED, MOVED, RESUMED, SAVE_FAILED, SAVE_SKIPPED, Event
from keepstep.plan.report.facts import MIRRORED, NOT_MIRRORED, SAVED, STARTED
from keepstep.plan.report.words import counted, step_text

_MOST_ATTEMPTS = 40
_MOST_SAVES, _MOST_OTHERS = 1000, 500
# Of a text that one sees under the mouse.
_LONGEST = 200

# What is drawn of events: its shape and colour; of other outcomes the last.
_SHAPES = {
    SAVED: ("M0,-0.9L0,0.9", "var(--c1)"),
    STARTED: ("triangle-right", "var(--c1)"),
    RESUMED: ("triangle-right", "var(--c3)"),
    SAVE_FAILED: ("cross", "var(--bad)"),
    FORKED: ("diamond", "var(--c4)"),
    MOVED: ("square", "var(--bad)"),
    DIED: ("M-0.7,-0.7L0.7,0.7M-0.7,0.7L0.7,-0.7", "var(--bad)"),
    ENDED: ("circle", "var(--text)"),
    CLOCK: ("triangle-down", "var(--c2)"),
    SAVE_SKIPPED: ("triangle-left", "var(--muted)"),
    NOT_MIRRORED: ("wedge", "var(--c2)"),
}
_OTHER, _OTHERS = ("circle", "var(--muted)"), "other"


def time_line(attempts: Sequence[Attempt], events: Sequence[Event]) -> Chart:
    """Attempts as bars over steps, and what happened in them. In the order of steps: clocks may go back."""
    shown = attempts[-_MOST_ATTEMPTS:]
    numbers = [one.number for one in shown]
    bars = [
        {"attempt": one.number, "step": one.start or 0, "end": one.end, "text": _of_attempt(one)}
        for one in shown
        if one.end is not None
    ]
    points = [
        {"attempt": one.attempt, "step": one.step, "kind": _kind(one), "text": _of_event(one)}
        for one in _drawn([one for one in events if one.attempt in numbers and one.step is not None])
    ]
    kinds = [*dict.fromkeys(str(one["kind"]) for one in points)]
    shapes, colours = ([_SHAPES.get(kind, _OTHER)[at] for kind in kinds] for at in (0, 1))
    box = {"title": None, "orient": "top", "symbolStrokeWidth": 2, "columnPadding": 24}
    y = {"field": "attempt", "type": "ordinal", "title": "attempt", "sort": numbers, "axis": {"grid": False}}
    x = {"field": "step", "type": "quantitative", "title": "step", "axis": STEPS}
    bar = {"type": "bar", "height": 14, "color": "var(--c1)", "opacity": 0.18, "cornerRadius": 3}
    kind = {"field": "kind", "type": "nominal", "legend": box}
    layers = [{"data": {"values": bars}, "mark": bar, "encoding": {"y": y, "x": x, "x2": {"field": "end"}, **TEXT}}]
    if points:
        shape = {**kind, "scale": {"domain": kinds, "range": shapes}}
        colour = {**kind, "scale": {"domain": kinds, "range": colours}}
        mark = {"type": "point", "size": 60, "strokeWidth": 2, "opacity": 1}
        encoding = {"y": y, "x": x, "shape": shape, "color": colour, **TEXT}
        layers.append({"data": {"values": points}, "mark": mark, "encoding": encoding})
    left_out = len(attempts) - len(shown)
    return Chart(
        "time-line",
        "Time line",
        f"{counted(len(attempts), 'attempt')} over steps, with saves, resumes, failures and forks",
        lambda width: frame(width, 30 * max(1, len(shown)) + 6, {"layer": layers}, legend_columns=width // 110),
        # The table of attempts stands below it.
        (),
        (),
        f"{left_out:,} earlier attempts are only in the table" if left_out else "",
        is_full=True,
    )


def _of_attempt(one: Attempt) -> str:
    return f"attempt {one.number}: step {step_text(one.start)} to {step_text(one.end)}; {one.outcome}"


def _of_event(one: Event) -> str:
    detail = f": {one.detail[:_LONGEST]}" if one.detail else ""
    return f"attempt {one.attempt}, step {step_text(one.step)}: {one.kind[:_LONGEST]}{detail}"


def _kind(one: Event) -> str:
    return one.kind if one.kind in _SHAPES else _OTHERS


def _drawn(events: Sequence[Event]) -> list[Event]:
    """Saves first, so that what is rare lies on top. Of too many saves some, evenly; of too much else the newest."""
    saves = [one for one in events if one.kind == SAVED]
    rest = [one for one in events if one.kind not in (SAVED, MIRRORED)]
    return saves[:: -(-len(saves) // _MOST_SAVES) or 1] + rest[-_MOST_OTHERS:]
