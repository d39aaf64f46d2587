"""The page: what is on it, and what can never be."""

import math
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest

from keepstep.config.bounds import parse_guard
from keepstep.errors import ConfigError
from keepstep.ops.report.chart import frame, over_steps
from keepstep.ops.report.page import render
from keepstep.ops.report.svg import draw
from keepstep.plan.lock import Claim
from keepstep.plan.report.facts import CheckpointFact, Facts
from keepstep.plan.report.logged import Logged
from keepstep.plan.report.story import story_of
from keepstep.plan.scores import Measured
from tests.rig.report_runs import saved

SPITE = "</style></title><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\x00\x1b[31m\ud800 {{ 7 * 7 }}"


class Reader(HTMLParser):
    """Collects elements, their attributes, and texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> Iterator[dict[str, str | None]]:
        return (attributes for name, attributes in self.elements if name == tag)


def test_a_run_of_10000_steps_and_200_checkpoints_is_small(page: str) -> None:
    assert len(page.encode()) < 3_000_000


def test_the_page_has_all_sections_and_each_picture_a_name(page: str) -> None:
    found = Reader(page)
    assert [one["id"] for one in found.all("section") if "id" in one] == [
        *("time-line", "training", "scores", "saves", "checkpoints", "mirrors", "record", "notes"),
    ]
    pictures = list(found.all("svg"))
    # Each once for a desk and once for a phone.
    assert len(pictures) == 2 * 9
    assert all(one["role"] == "img" and one["aria-label"] for one in pictures)
    assert "chosen one is step" in page
    assert all(one.get("scope") for one in found.all("th"))
    assert len(list(found.all("caption"))) == len(list(found.all("table")))
    links = {str(one["href"])[1:] for one in found.all("a")}
    ids = [one["id"] for _, one in found.elements if "id" in one]
    assert links <= set(ids)
    assert len(ids) == len(set(ids))


def test_nothing_on_the_page_loads_anything(page: str) -> None:
    found = Reader(page)
    (policy,) = (one["content"] for one in found.all("meta") if one.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert {tag for tag, _ in found.elements}.isdisjoint(
        {"script", "img", "iframe", "link", "object", "embed", "use", "image"}
    )
    for _, attributes in found.elements:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "xlink:href", "action")]
        assert (attributes.get("href") or "#").startswith("#")


def test_texts_from_files_are_only_shown() -> None:
    rows: list[Any] = [
        {**saved(1, 1, mode=SPITE), "ranks": [{"host": SPITE, "write": 1.0}, {"host": "b", "write": 2.0}]},
        {"step": 2, "attempt": 1, "outcome": "failed", "problem": SPITE},
        {"step": 2, "attempt": 1, "outcome": SPITE, "reason": SPITE},
        {"step": 2, "attempt": 1, "outcome": "not mirrored", "address": SPITE, "problem": SPITE},
    ]
    found = Facts(
        SPITE,
        SPITE,
        saves=tuple(rows),
        checkpoints=(CheckpointFact(1, SPITE, SPITE, SPITE, attempt=1),),
        logged=Logged([{"step": 1, SPITE: 1.0}, {"step": 2, SPITE: 2.0}]).series(),
        scores=(Measured(1, SPITE, SPITE, {f"task/{SPITE}": 0.5}, failed={SPITE: SPITE}),),
        records={1: {SPITE: SPITE, "config": {SPITE: SPITE}}, 2: {SPITE: SPITE + "!"}},
        exit={"outcome": SPITE, "error": SPITE},
        claim=Claim.UNKNOWN,
        holder=SPITE,
        origin=SPITE,
        leftovers=(SPITE,),
        notes=(SPITE,),
    )
    page = render(story_of(found))
    read = Reader(page)
    assert page.encode()
    assert not {tag for tag, _ in read.elements} & {"script", "img"}
    assert len(list(read.all("style"))) == 1
    assert "{{ 7 * 7 }}" in read.text
    assert "\x1b" not in page
    assert "\x00" not in page


def test_odd_numbers_are_drawn_as_gaps() -> None:
    found = Facts(
        "odd",
        "/odd",
        logged=Logged(
            {"step": n, "loss": [1.0, math.nan, math.inf, 10**400][n % 4], "lost": math.nan} for n in range(9)
        ).series(),
        scores=tuple(Measured(n, f"d{n}", "", {"task/a": math.nan if n % 2 else 1.0 * n}) for n in range(5)),
    )
    page = render(story_of(found))
    assert "loss: 6 values of 9 not finite, the first at step 1" in page
    assert "Not drawn: lost." in page
    assert "NaN" in page


def test_numbers_too_small_to_draw_are_zero_and_too_large_ones_a_table() -> None:
    rows = [{"step": n, "tiny": n * 1e-310, "huge": (-1) ** n * 1.7e308} for n in range(1, 9)]
    page = render(story_of(Facts("odd", "/odd", logged=Logged(rows).series())))
    read = Reader(page)
    assert [one["id"] for one in read.all("figure")] == ["logged-0-chart", "logged-1-chart"]
    assert len(list(read.all("svg"))) >= 2
    assert "tiny over steps" in page


def test_a_picture_that_fails_is_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> str:
        raise ValueError("no picture\nof that")

    monkeypatch.setattr("vl_convert.vegalite_to_svg", fail)
    page = render(story_of(Facts("run", "/run", logged=Logged([{"step": 1, "loss": 0.25}]).series())))
    assert "<svg" not in page
    assert "it cannot be drawn, and is a table alone: no picture</p>" in page
    assert "0.25" in page


def test_a_page_of_nothing() -> None:
    page = render(story_of(Facts("empty", "/empty", notes=("there is no checkpoint",))))
    assert "<svg" not in page
    assert page.count("Nothing has happened yet.") == 1
    assert "there is no checkpoint" in page


def test_a_picture_is_plain_svg_whose_points_have_titles() -> None:
    values = [{"x": 1.23456789, "t": "<one>"}, {"x": 2, "t": "two\x0b"}]
    encoding = {"x": {"field": "x", "type": "quantitative"}, "description": {"field": "t"}}
    drawn = draw({"data": {"values": values}, "mark": "point", "encoding": encoding, "width": 100}, "a \x01 name")
    root = ET.fromstring(drawn)
    assert (root.get("role"), root.get("aria-label")) == ("img", "a \\x01 name")
    titles = [one.text for one in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["<one>", "two\\x0b"]


def test_a_picture_loads_no_data() -> None:
    specification = {"data": {"url": "https://example.org/data.json"}, "mark": "point", "width": 100}
    try:
        drawn = draw(specification, "none")
    except ValueError:
        return
    assert "title" not in drawn


def test_the_choice_its_guards_and_what_is_gone_are_on_the_page() -> None:
    scores = [
        Measured(step, f"d{step}", f"save-{step}", {"task/accuracy": value, "canary/recall": canary})
        for step, value, canary in ((1, 0.95, 1.0), (2, 0.9, 0.5), (3, 0.75, 1.0), (4, 0.5, 1.0))
    ]
    checkpoints = [CheckpointFact(step, f"save-{step}", "complete", digest=f"d{step}") for step in (2, 3, 4, 5)]
    facts = Facts("run", "/run", checkpoints=tuple(checkpoints), scores=tuple(scores))
    page = render(story_of(facts, "accuracy", "max", [parse_guard("recall>=0.9")]))
    text = Reader(page).text
    assert "Step 3 is chosen: the highest task/accuracy of 2 eligible." in text
    assert "Guards: canary/recall>=0.9." in text
    assert "guard canary/recall>=0.9: it is 0.5" in text
    assert "not there any more" in text
    assert "not scored yet" in text
    assert "step 1: task/accuracy 0.95, gone" in text
    assert 'opacity="0.4"' in page
    page = render(story_of(facts, guards=[parse_guard("recall>2")]))
    assert (
        "Nothing is chosen by task/accuracy: not there any more (step 1); guard canary/recall&gt;2: it is 0.5" in page
    )


@pytest.mark.parametrize("last", [1000, 10_000, 3_000_000])
def test_the_axis_of_steps_begins_at_0(last: int) -> None:
    encoding = over_steps("")
    encoding["x"]["scale"]["zero"] = True
    values = [{"step": step, "value": 1.0} for step in (0, last)]
    drawn = draw(frame(600, 100, {"data": {"values": values}, "mark": "line", "encoding": encoding}), "steps")
    labels = [one.text for one in ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
    assert labels[0] == "0"


@pytest.mark.parametrize("missing", ["vl_convert", "jinja2"])
def test_without_what_draws_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    story = story_of(Facts("run", "/run", logged=Logged([{"step": 1, "loss": 1.0}]).series()))
    with pytest.raises(ConfigError, match=r'pip install "keepstep\[report\]"'):
        render(story)
