"""Lines of strict JSON, however rows look."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from keepstep.storage.outputs.formats import JsonLines, Npy, RowBuffer, SafeTensors, check_format, to_lines

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
ROWS = st.lists(
    st.dictionaries(st.sampled_from(["a", "}\x1f{", "b\n", "id"]), VALUES, max_size=3), min_size=1, max_size=5
)


@given(ROWS)
def test_each_row_is_the_line_that_json_makes_of_it(rows: list[dict[str, Any]]) -> None:
    ids = [f"n{number}}}\x1f{{" for number in range(len(rows))]
    expected = [row if "id" in row else {"id": id, **row} for id, row in zip(ids, rows, strict=True)]
    assert to_lines(rows, ids) == "".join(json.dumps(row) + "\n" for row in expected)


def test_ids_may_be_anything_that_json_has() -> None:
    assert to_lines([{"a": 1}, {"a": 2}], [[1, 2], {"x": [{}, {}]}]) == (
        '{"id": [1, 2], "a": 1}\n{"id": {"x": [{}, {}]}, "a": 2}\n'
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf, [-math.inf], {"x": (math.nan,)}, np.float64("nan")])
def test_what_json_has_no_number_for_is_null(bad: Any) -> None:
    (first, second) = to_lines([{"v": bad}, {"v": 1.0}], [0, 1]).splitlines()
    assert "null" in first
    assert json.loads(first, parse_constant=pytest.fail)["id"] == 0
    assert second == '{"id": 1, "v": 1.0}'


def test_arrays_and_tensors_are_lists() -> None:
    rows = [{"a": np.arange(3), "b": torch.ones(2, dtype=torch.bfloat16), "c": np.int64(4)}]
    assert to_lines(rows, [7]) == '{"id": 7, "a": [0, 1, 2], "b": [1.0, 1.0], "c": 4}\n'


def test_a_row_that_cannot_be_held_leaves_all_as_it_was() -> None:
    lines = JsonLines()
    lines.add([{"a": 1}], [0])
    before = (lines.rows, lines.bytes)
    with pytest.raises(TypeError, match="a set has no form in JSON"):
        lines.add([{"a": 2}, {"a": {3}}], [1, 2])
    assert (lines.rows, lines.bytes) == before
    with pytest.raises(ValueError, match="one array beside the id"):
        Npy().add([{"a": 1, "b": 2}], [0])


def test_memory_is_counted() -> None:
    rows = SafeTensors()
    rows.add([{"e": torch.zeros(1000)}, {"e": torch.zeros(1000)}], [0, 1])
    assert rows.bytes > 8000
    rows.clear()
    assert (rows.rows, rows.bytes) == (0, 0)
    check_format("jsonl", "zstd")


@given(ROWS.flatmap(lambda rows: st.tuples(st.just(rows), st.permutations(range(len(rows))))))
def test_lines_are_brought_into_another_order(case: tuple[list[dict[str, Any]], list[int]]) -> None:
    rows, order = case
    lines, expected = JsonLines(), JsonLines()
    for number, row in enumerate(rows):
        lines.add([row], [number])
    lines.reorder(order)
    expected.add([rows[number] for number in order], order)
    assert _written(lines) == _written(expected)


def _written(buffer: RowBuffer) -> bytes:
    class Sink:
        data = b""

        def write(self, data: Any) -> None:
            self.data += bytes(data)

    sink = Sink()
    buffer.write(sink)  # type: ignore[arg-type]
    return sink.data
