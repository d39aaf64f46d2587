"""Rows of `scores.jsonl`, and what a scorer prints."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstep.plan.scores import (
    FAILED,
    MARKED,
    OUTCOMES,
    RETRY,
    SCORED,
    MetricsError,
    Score,
    from_lines,
    is_set_name,
    last_words,
    measured,
    metrics_from,
    metrics_in,
    to_line,
)

NUMBERS = st.floats(allow_nan=False) | st.just(math.inf) | st.just(-math.inf)


def row(step: int, outcome: str = SCORED, set: str = "task", **more: object) -> Score:
    return Score(step, more.pop("digest", f"d{step}"), set, outcome, **more)  # type: ignore[arg-type]


@given(
    st.builds(
        Score,
        step=st.integers(0),
        digest=st.text(min_size=1),
        set=st.text(min_size=1),
        outcome=st.sampled_from(OUTCOMES),
        checkpoint=st.text(),
        metrics=st.dictionaries(st.text(), NUMBERS),
        problem=st.text(),
        seconds=st.floats(0, 1e9),
        command=st.lists(st.text()).map(tuple),
        versions=st.dictionaries(st.text(), st.text()),
        tries=st.integers(0, 9),
        time=st.floats(0, 1e10),
        watcher=st.text(),
    )
)
def test_a_row_comes_back_as_it_was(score: Score) -> None:
    line = to_line(score)
    assert "\n" not in line
    assert from_lines(line + "\n") == ((score,), 0)


def test_nan_and_infinities_are_words_that_every_json_reader_takes() -> None:
    metrics = {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 0.5}
    line = to_line(row(1, metrics=metrics))
    found = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert found["metrics"] == {"a": "NaN", "b": "Infinity", "c": "-Infinity", "d": 0.5}
    ((score,), _) = from_lines(line + "\n")
    assert math.isnan(score.metrics["a"])
    assert (score.metrics["b"], score.metrics["c"]) == (math.inf, -math.inf)


def test_lines_that_are_none_are_counted_and_a_line_that_has_no_end_is_not_there_yet() -> None:
    good = to_line(row(1))
    text = "\n".join([good, "", "{torn", "[1]", '{"step": "1"}', good.replace("scored", "guessed"), good[:-1]])
    assert from_lines(text) == ((row(1),), 4)
    assert from_lines("\ufeff" + text + "}") == ((row(1), row(1)), 4)  # an editor begins and ends lines as it likes
    assert from_lines(text.replace("\n", "\r\n") + "}\r\n") == ((row(1), row(1)), 4)


@pytest.mark.parametrize(
    "wrong",
    [
        {"time": "now"},
        {"time": None},
        {"tries": "2"},
        {"step": True},
        {"seconds": None},
        {"set": 3},
        {"command": [1]},
        {"versions": {"a": 1}},
        {"metrics": {"a": int("9" * 400)}},
        {"metrics": {"a": "many"}},
        {"metrics": 3},
        {"problem": []},
    ],
)
def test_a_row_of_other_types_is_none(wrong: dict[str, object]) -> None:
    assert from_lines(json.dumps({**json.loads(to_line(row(1))), **wrong}) + "\n") == ((), 1)


def test_the_first_numbers_count_and_else_the_last_row() -> None:
    first, second = row(1, metrics={"a": 1.0}), row(1, metrics={"a": 2.0})
    assert last_words([first, second])["d1", "task"] is first
    failed, retry = row(1, FAILED, problem="x"), row(1, RETRY, problem="y")
    assert last_words([retry, failed])["d1", "task"] is failed
    assert last_words([retry, failed, retry])["d1", "task"] is retry  # failures were asked for once more
    assert last_words([failed, first])["d1", "task"] is first
    assert last_words([first, failed])["d1", "task"] is first
    assert last_words([row(1, RETRY, tries=1), row(1, RETRY, tries=2)])["d1", "task"].tries == 2


def test_metrics_of_all_sets_have_full_names() -> None:
    rows = [
        row(2, metrics={"accuracy": 0.5, "mmlu/stem": 0.25}, set="canary"),
        row(2, metrics={"accuracy": 0.75, "old/accuracy": 0.1}),
        row(1, FAILED, problem="killed"),
        row(3, MARKED),
    ]
    found = {one.step: one for one in measured(rows)}
    assert dict(found[2].metrics) == {
        "canary/accuracy": 0.5,
        "canary/mmlu/stem": 0.25,
        "task/accuracy": 0.75,
        "old/accuracy": 0.1,
    }
    assert dict(found[1].failed) == {"task": "killed"}
    assert [one.step for one in measured(rows)] == [1, 2, 3]


def test_two_values_under_one_name_are_named() -> None:
    rows = [row(1, metrics={"canary/a": 1.0, "b": math.nan}), row(1, metrics={"a": 2.0}, set="canary")]
    assert measured(rows)[0].ambiguous == ("canary/a",)
    assert measured(rows)[0].doubled == {"canary/a": (1.0, 2.0)}
    assert measured([rows[0], row(1, metrics={"a": 1.0}, set="canary")])[0].ambiguous == ()


def test_the_last_line_that_is_an_object_counts() -> None:
    text = 'loading\n{"accuracy": 0.1}\n{broken\n  {"accuracy": 0.9, "n": 100, "who": "me", "ok": true}\ndone\n'
    assert metrics_in(text) == {"accuracy": 0.9, "n": 100.0}


@pytest.mark.parametrize("indent", [1, 2, 4])
def test_an_object_over_several_lines_is_one(indent: int) -> None:
    pretty = json.dumps({"task": {"a": 1}, "rows": [{"b": 1}, {"b": 2}], "c": {}}, indent=indent)
    assert metrics_in(f'{{"epoch": 1}}\n{pretty}\ndone\n') == {"task/a": 1.0}


@pytest.mark.parametrize("last", ['{"accuracy": 0.9', '{"accuracy": 0.9,\n "b": ', '{"note": "a\u2028b", "c": '])
def test_an_earlier_line_is_not_taken_for_a_broken_last_one(last: str) -> None:
    with pytest.raises(MetricsError, match="broken"):
        metrics_in(f'{{"epoch": 1}}\n{last}\n')
    assert metrics_in('{"note": "a\u2028b", "c": 1}') == {"c": 1.0}


def test_objects_in_it_are_flattened() -> None:
    assert metrics_in('{"task": {"a": {"b": 1}}, "canary": {"a": 2}}') == {"task/a/b": 1.0, "canary/a": 2.0}


@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity"])
def test_odd_numbers_are_numbers(name: str) -> None:
    value = metrics_in(f'{{"loss": {name}}}')["loss"]
    assert repr(value) == repr(float(name.lower()))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no metrics"),
        ("0.93\n[1]", "no metrics"),
        ('{"name": "x"}', "no number"),
        ("{}", "no number"),
        ('{"a": 1, "a": 1}', "called a"),
        ('{"s": {"a": 1}, "s/a": 2}', "called s/a"),
    ],
)
def test_what_is_no_set_of_metrics_is_refused_with_the_reason(text: str, told: str) -> None:
    with pytest.raises(MetricsError, match=told):
        metrics_in(text)


def test_a_function_may_return_numbers_of_numpy() -> None:
    assert metrics_from({"a": np.float32(0.5), "canary": {"b": np.int64(3)}, "text": "x", "none": None}) == {
        "a": 0.5,
        "canary/b": 3.0,
    }


def test_names_of_sets() -> None:
    assert all(map(is_set_name, ["task", "canary", "mmlu-5.1_x", "7"]))
    assert not any(map(is_set_name, ["", "a/b", ".hidden", "a b", "ü", "x" * 65]))
