"""Draws charts: Vega-Lite specifications become SVG that a page holds, without a script and without a network.

Vega-Lite through vl-convert: its output is plain SVG of 10 to 60 kB a chart. Its colours may be CSS variables, so one
picture serves light and dark, and each of its points carries a text. Plotly and Bokeh bring over 1 MB of scripts.
"""

import json
import re
import sys
import xml.etree.ElementTree as ET
from typing import Any

from keepstep.errors import ConfigError
from keepstep.ops.report.shown import shown

_SVG = "http://www.w3.org/2000/svg"
_ALLOWED = frozenset(f"{{{_SVG}}}{name}" for name in ("svg", "g", "path", "line", "rect", "text", "tspan", "title"))
_KEPT = frozenset(
    {
        *("d", "transform", "x", "y", "x1", "x2", "y1", "y2", "dx", "dy", "width", "height", "viewBox", "opacity"),
        *("fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linecap"),
        *("text-anchor", "font-size", "font-weight", "font-family", "stroke-miterlimit", "stroke-linejoin"),
    }
)
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}(?:e-?\d+)?")


class DrawingError(ValueError):
    """A picture that cannot be drawn."""


def draw(specification: dict[str, Any], label: str) -> str:
    """One chart as an `svg` element.

    Args:
        specification: of Vega-Lite, with its data inside.
        label: what a screen reader says of it.

    Raises:
        ConfigError: the library that draws is not installed.
        DrawingError: it does not draw that.
    """
    try:
        import vl_convert
    except ImportError:
        raise ConfigError('the report needs a library that draws: pip install "keepstep[report]"') from None
    # No address is allowed: a chart has all of its data.
    text = json.dumps(_shown(specification), allow_nan=False)
    ET.register_namespace("", _SVG)
    try:
        # What is parsed was made here, from our specification and texts that the library has escaped.
        root = ET.fromstring(vl_convert.vegalite_to_svg(text, allowed_base_urls=[]))
    except (ValueError, ET.ParseError) as error:
        raise DrawingError(f"{error}".splitlines()[0] if f"{error}" else type(error).__name__) from error
    _clean(root)
    root.attrib.pop("width", None)
    root.attrib.pop("height", None)
    root.set("role", "img")
    root.set("aria-label", shown(label))
    return ET.tostring(root, encoding="unicode")


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, float) and abs(value) < sys.float_info.min:
        return 0.0  # the library fails on an axis of subnormal numbers
    if isinstance(value, dict):
        return {name: _shown(one) for name, one in value.items()}
    return [_shown(one) for one in value] if isinstance(value, list | tuple) else value


def _clean(element: ET.Element) -> None:
    """Keep what is seen, and the text of each point as a title, which browsers show under the mouse."""
    for child in list(element):
        is_hidden = child.get("display") == "none" or child.get("class") == "background"
        if child.tag not in _ALLOWED or is_hidden:
            element.remove(child)
            continue
        text = child.get("aria-label") if child.get("aria-roledescription") in ("point", "bar", "tick") else None
        _clean(child)
        if text:
            ET.SubElement(child, f"{{{_SVG}}}title").text = text
        if child.tag == f"{{{_SVG}}}g" and not len(child):
            element.remove(child)
    for name in list(element.attrib):
        if name not in _KEPT:
            del element.attrib[name]
        else:
            element.attrib[name] = _LONG_NUMBER.sub(_rounded, element.attrib[name])


def _rounded(match: re.Match[str]) -> str:
    return f"{float(match[0]):.2f}".rstrip("0").rstrip(".")
