"""Positions as spans, names, and what a start settles."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstep.plan.coverage import coverage_of, merge_order
from keepstep.plan.outputs import (
    Part,
    Runs,
    Span,
    hidden_name,
    in_input_order,
    is_hidden,
    is_part,
    part_name,
    runs_of,
    settle,
)


def spans_of(positions: list[int]) -> tuple[Span, ...]:
    runs = Runs()
    for position in positions:
        runs.add(position)
    return runs.spans()


def positions_of(spans: tuple[Span, ...]) -> list[int]:
    return [begin + i for begin, count in runs_of(spans) for i in range(count)]


def part(number: int, positions: list[int], size: int = 10) -> Part:
    return Part(part_name(5, number, 1, 0, "jsonl"), len(positions), size, f"d{number}", spans_of(positions))


@given(st.lists(st.integers(0, 60), max_size=60))
def test_spans_give_the_same_positions_in_the_same_order(positions: list[int]) -> None:
    spans = spans_of(positions)
    assert positions_of(spans) == positions
    assert sum(span.size for span in spans) == len(positions)


@pytest.mark.parametrize(("rank", "steps"), [(0, 1000), (3, 1000), (2, 1)])
def test_what_one_rank_takes_of_equal_batches_is_one_span(rank: int, steps: int) -> None:
    runs = Runs()
    for step in range(steps):
        runs.add(step * 32 + rank * 8, 8)
    assert len(runs.spans()) == 1
    assert positions_of(runs.spans())[:9] == [*range(rank * 8, rank * 8 + 8), *([32 + rank * 8] if steps > 1 else [])]


def test_a_part_comes_back_from_its_row() -> None:
    one = part(3, [4, 5, 8, 9, 12, 13, 40])
    assert Part.from_row(json.loads(json.dumps(one.to_row()))) == one
    assert one.first == 4
    assert not one.is_errors
    for change in (
        {"part": "../../etc/passwd"},
        {"rows": 9},
        {"spans": []},
        {"spans": [["x"]]},
        {"digest": None, "bytes": []},
    ):
        with pytest.raises(ValueError, match="no row of an index"):
            Part.from_row({**one.to_row(), **change})
    with pytest.raises(ValueError, match="no row of an index"):
        Part.from_row({})


def test_only_our_names_are_ours() -> None:
    rows, errors = part_name(5, 0, 1, 2, "jsonl.gz"), part_name(5, 0, 1, 2, "jsonl", is_errors=True)
    assert (rows, errors) == ("part-000000005-00000-1-2.jsonl.gz", "_errors-000000005-00000-1-2.jsonl")
    for name in (rows, errors):
        assert is_part(name)
        assert not is_hidden(name)
        assert is_hidden(hidden_name(name))
        assert not is_part(hidden_name(name))
    for foreign in ("part-1.jsonl", "part-00000.parquet", ".part-x.tmp", "notes.jsonl", "_SUCCESS.json", rows + "\n"):
        assert not is_part(foreign)
        assert not is_hidden(foreign)


def test_a_start_publishes_what_is_committed_and_drops_what_is_not() -> None:
    there, hidden, gone, cut = (part(n, [n]) for n in range(4))
    stray, later = part_name(9, 0, 2, 0, "jsonl"), part_name(9, 0, 1, 0, "jsonl")
    sizes = {there.name: 10, hidden_name(hidden.name): 10, hidden_name(stray): 3, later: 10}
    plan = settle([there, hidden], sizes)
    assert plan.publish == (hidden,)
    assert plan.drop == (hidden_name(stray),)
    assert plan.set_aside == (later,)
    assert plan.problems == ()
    sizes |= {hidden_name(cut.name): 9}
    assert settle([gone, cut], sizes).problems == (f"{gone.name} is gone", f"{cut.name} has 9 bytes, not 10")


@given(st.lists(st.integers(0, 60), unique=True))
def test_sorted_runs_rise_and_say_how_rows_are_brought_there(positions: list[int]) -> None:
    runs = Runs()
    for position in positions:
        runs.add(position)
    order = runs.sort()
    assert list(positions_of(runs.spans())) == sorted(positions)
    if order is None:
        assert positions == sorted(positions)
    else:
        assert [positions[number] for number in order] == sorted(positions)


@given(st.permutations(range(40)), st.lists(st.integers(0, 4), min_size=40, max_size=40))
def test_merging_gives_each_position_in_order(order: list[int], owners: list[int]) -> None:
    by_owner = [[position for position in range(40) if owners[position] == owner] for owner in range(5)]
    parts = [part(number, own) for number, own in enumerate(by_owner) if own]
    parts = in_input_order(parts)
    rows = [iter(positions_of(one.spans)) for one in parts]
    merged = [next(rows[index]) for index, count in merge_order(parts) for _ in range(count)]
    assert merged == list(range(40))
    assert coverage_of(parts, 40).problems == []


def test_parts_that_follow_each_other_are_taken_whole() -> None:
    assert list(merge_order([part(0, list(range(10))), part(1, list(range(10, 30)))])) == [(0, 10), (1, 20)]
    assert list(merge_order([])) == []


@given(st.lists(st.sets(st.integers(0, 30), min_size=1), max_size=6), st.none() | st.integers(0, 35))
def test_gaps_and_repeats_are_found(held: list[set[int]], inputs: int | None) -> None:
    found = coverage_of([part(number, sorted(own)) for number, own in enumerate(held)], inputs)
    counts = [sum(position in own for own in held) for position in range(found.end)]
    gaps = {p for a, b in found.gaps for p in range(a, b + 1)}
    repeats = {p for a, b in found.repeats for p in range(a, b + 1)}
    assert gaps == {position for position, count in enumerate(counts) if count == 0}
    assert repeats == {position for position, count in enumerate(counts) if count > 1}
    assert bool(found.problems) == bool(gaps or repeats)


def test_problems_name_the_first_ranges() -> None:
    found = coverage_of([part(0, [0, 1, 5]), part(1, [1])], 8)
    assert found.problems == ["no part holds position 2 to 4, 6 to 7", "more than one part holds position 1"]
