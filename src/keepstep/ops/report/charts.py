"""The charts of a report, as specifications of Vega-Lite."""

from collections.abc import Sequence

from keepstep.ops.report.chart import (
    COLOURS,
    HIDDEN,
    TEXT,
    VALUES,
    Chart,
    Spec,
    frame,
    hovered,
    legend,
    line,
    over_steps,
)
from keepstep.plan.report.saves import RankCost
from keepstep.plan.report.scoreboard import Scoreboard
from keepstep.plan.report.series import Series, thin
from keepstep.plan.report.words import number_text, seconds_text, size_text, step_text

_TABLE_ROWS = 60
_HOVERED = 120
_GONE = ", gone"


def line_chart(name: str, series: Series, unit: str = "") -> Chart:
    """One quantity over steps."""
    table = [(step_text(p.step), number_text(p.value)) for p in thin(series.points, _TABLE_ROWS)]
    values = [{"step": p.step, "value": p.value} for p in series.points]
    hover = [hovered(p.step, number_text(p.value), p.value, series.name) for p in thin(series.points, _HOVERED)]
    layers = [line("var(--c1)"), {"data": {"values": hover}, "mark": HIDDEN, "encoding": TEXT}]
    note = f"{len(series.points):,} of {series.count:,} values are drawn" if len(series.points) < series.count else ""
    return Chart(
        name,
        series.name,
        f"{series.name} over steps; the last value is {number_text(series.last)}",
        lambda width: frame(width, 190, {"data": {"values": values}, "layer": layers, "encoding": over_steps(unit)}),
        ("Step", series.name),
        tuple(table),
        note,
    )


def score_chart(name: str, series: Series, board: Scoreboard) -> Chart:
    """A metric over steps, each checkpoint a point, the chosen one marked."""
    chosen = board.chosen if board.metric == series.name else None
    values = [{"step": p.step, "value": p.value} for p in series.points]
    gone = board.gone
    points = [
        hovered(p.step, number_text(p.value) + (_GONE if p.step in gone else ""), p.value, series.name)
        | {"opacity": 0.4 if p.step in gone else 1}
        for p in series.points
    ]
    layers: list[Spec] = [
        line("var(--c2)"),
        {"data": {"values": points}, "mark": {"type": "point", "filled": True, "size": 22, "color": "var(--c2)"}}
        | {"encoding": {**TEXT, "opacity": {"field": "opacity", "type": "quantitative", "scale": None}}},
    ]
    if chosen:
        best = [{"step": chosen.step, "value": board.value, "text": f"chosen: step {chosen.step}"}]
        ring = {"type": "point", "size": 160, "stroke": "var(--c4)", "strokeWidth": 2.5, "filled": False, "opacity": 1}
        layers.append({"data": {"values": best}, "mark": ring, "encoding": TEXT})
    mark = f"; the chosen one is step {step_text(chosen.step)} with {number_text(board.value)}" if chosen else ""
    words = dict.fromkeys(gone, f" ({_GONE.removeprefix(', ')})") | ({chosen.step: " (chosen)"} if chosen else {})
    rows = [(step_text(p.step) + words.get(p.step, ""), number_text(p.value)) for p in series.points]
    return Chart(
        name,
        series.name,
        f"{series.name} over steps{mark}",
        lambda width: frame(width, 190, {"data": {"values": values}, "layer": layers, "encoding": over_steps("")}),
        ("Step", series.name),
        tuple(rows),
        f"chosen: step {step_text(chosen.step)} with {number_text(board.value)}" if chosen else "",
    )


def cost_chart(series: Sequence[Series]) -> Chart:
    """What saves cost, part by part."""
    values = [{"step": p.step, "value": p.value, "part": one.name} for one in series for p in one.points]
    hover = [
        {**hovered(p.step, seconds_text(p.value), p.value, one.name), "part": one.name}
        for one in series
        for p in thin(one.points, _HOVERED)
    ]
    names = [one.name for one in series]
    encoding = over_steps("seconds", zero=True) | {"color": legend("part", names, COLOURS)}
    layers = [
        {"mark": {"type": "line", "strokeWidth": 1.5, "aria": False}},
        {"data": {"values": hover}, "mark": HIDDEN, "encoding": TEXT},
    ]
    steps = sorted({p.step for one in series for p in thin(one.points, _TABLE_ROWS)})
    known = [{p.step: p.value for p in one.points} for one in series]
    rows = [(step_text(step), *(seconds_text(values_.get(step)) for values_ in known)) for step in steps]
    return Chart(
        "save-cost",
        "Cost of each save",
        "seconds of each save over steps: " + ", ".join(names),
        lambda width: frame(width, 210, {"data": {"values": values}, "layer": layers, "encoding": encoding}),
        ("Step", *names),
        tuple(rows),
    )


def rank_chart(ranks: Sequence[RankCost]) -> Chart:
    """Medians of each rank, stacked."""
    parts = ("snapshot", "write", "sync", "index")
    values = [
        {
            "rank": one.ranks,
            "part": part,
            "order": at,
            "value": value,
            "text": f"{one.ranks}: {part} {seconds_text(value)}",
        }
        for one in ranks
        for at, part in enumerate(parts)
        if (value := getattr(one, part)) is not None
    ]
    encoding = {
        "y": {"field": "rank", "type": "nominal", "sort": None, "title": "rank", "axis": {"grid": False}},
        "x": {"field": "value", "type": "quantitative", "title": "seconds (median)", "axis": VALUES},
        "color": legend("part", parts, COLOURS),
        "order": {"field": "order"},
        **TEXT,
    }
    return Chart(
        "ranks",
        "Where ranks spend a save",
        "median seconds of each rank: snapshot, write, sync and index",
        lambda width: frame(
            width, 22 * len(ranks) + 10, {"data": {"values": values}, "mark": {"type": "bar"}, "encoding": encoding}
        ),
        ("Rank", "Host", "Snapshot", "Write", "Sync", "Index", "Slowest in saves"),
        tuple(
            (one.ranks, one.host, *(seconds_text(getattr(one, part)) for part in parts), f"{one.slowest:,}")
            for one in ranks
        ),
    )


def size_chart(sizes: Series) -> Chart:
    """Bytes of checkpoints over steps."""
    unit, factor = ("GB", 1e9) if (sizes.last or 0) >= 1e9 else ("MB", 1e6)
    values = [
        {"step": p.step, "value": p.value / factor, "text": f"step {p.step}: {size_text(p.value)}"}
        for p in sizes.points
        if p.value is not None
    ]
    mark = {"type": "point", "filled": True, "size": 22, "color": "var(--c3)"}
    encoding = over_steps(unit, zero=True) | TEXT
    return Chart(
        "sizes",
        "Size of checkpoints",
        f"size of checkpoints over steps; the last has {size_text(sizes.last)}",
        lambda width: frame(width, 140, {"data": {"values": values}, "mark": mark, "encoding": encoding}),
        ("Step", "Size"),
        tuple((step_text(p.step), size_text(p.value)) for p in thin(sizes.points, _TABLE_ROWS)),
    )
