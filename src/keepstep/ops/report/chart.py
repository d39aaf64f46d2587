"""What all charts share: their frame, their colours, and the table beside them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

# A desk and a phone: each width has a picture of its own, since texts that shrink cannot be read.
WIDTHS = {"wide": 600, "narrow": 320}
FULL_WIDTHS = {"wide": 1120, "narrow": 320}
COLOURS = ("var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)")

Spec = dict[str, Any]


@dataclass(frozen=True)
class Chart:
    """One picture.

    Attributes:
        name: of the chart; unique on the page.
        title, label: above it, and for those who do not see it.
        spec: the specification for a width in pixels.
        header, rows: the table that says the same.
        note: what is left out, if anything.
        is_full: whether it takes the whole width of the page.
    """

    name: str
    title: str
    label: str
    spec: Callable[[int], Spec]
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    is_full: bool = False

    @property
    def widths(self) -> dict[str, int]:
        """The widths that it is drawn for."""
        return FULL_WIDTHS if self.is_full else WIDTHS


TEXT: Spec = {"description": {"field": "text"}}
HIDDEN: Spec = {"type": "point", "filled": True, "size": 150, "opacity": 0}
STEPS: Spec = {"labelExpr": "datum.value == 0 ? '0' : format(datum.value, '~s')", "tickCount": 6}
_LARGE = "abs(datum.value) >= 1e4 && abs(datum.value) < 1e15"
VALUES: Spec = {"labelExpr": f"{_LARGE} ? format(datum.value, '.4~s') : format(datum.value, '~g')", "tickCount": 5}


def hovered(step: int, value: str, at: float | None, name: str) -> Spec:
    """A point that says what it is."""
    return {"step": step, "value": at, "text": f"step {step:,}: {name} {value}"}


def line(colour: str) -> Spec:
    """The mark of one series. Where a value is missing the line has a gap."""
    return {
        "mark": {
            "type": "line",
            "stroke": colour,
            "strokeWidth": 1.5,
            "aria": False,
            "invalid": "break-paths-show-path-domains",
        }
    }


def over_steps(title: str, *, zero: bool = False) -> Spec:
    return {
        "x": {"field": "step", "type": "quantitative", "title": "step", "axis": STEPS, "scale": {"nice": False}},
        "y": {
            "field": "value",
            "type": "quantitative",
            "title": title or None,
            "scale": {"zero": zero},
            "axis": VALUES,
        },
    }


def legend(field: str, names: Sequence[str], colours: Sequence[str]) -> Spec:
    """The colour of each name, and the legend that says so."""
    box = {"title": None, "orient": "top", "symbolType": "square", "columnPadding": 28}
    scale = {"domain": list(names), "range": list(colours[: len(names)])}
    return {"field": field, "type": "nominal", "legend": box, "scale": scale}


def frame(width: int, height: int, spec: Spec, legend_columns: int | None = None) -> Spec:
    """A specification in the page's colours, which are CSS variables, and of one width over all."""
    axis = {
        "labelColor": "var(--muted)",
        "titleColor": "var(--muted)",
        "gridColor": "var(--grid)",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "domain": False,
        "ticks": False,
        "labelPadding": 6,
    }
    columns = legend_columns or (4 if width > 500 else 2)
    legends = {"labelColor": "var(--text)", "labelFontSize": 12, "columns": columns}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "width": width,
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "background": None,
        "padding": {"left": 8, "right": 4, "top": 2, "bottom": 2},
        **spec,
        "config": {"axis": axis, "legend": legends, "view": {"stroke": None}, "font": "sans-serif"},
    }
