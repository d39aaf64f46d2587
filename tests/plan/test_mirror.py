import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstep.plan.mirror import (
    Copy,
    back_off_seconds,
    choose_fetches,
    due_uploads,
    left_behind,
    plan_mirror_retention,
    present_line,
    waiting,
)

copies = st.sets(st.builds(Copy, st.integers(0, 12), st.integers(1, 4)), max_size=10)


def of(*pairs: tuple[int, int]) -> set[Copy]:
    return {Copy(step, attempt) for step, attempt in pairs}


def steps(found: object) -> list[int]:
    return [copy.step for copy in found]  # type: ignore[attr-defined]


def test_one_attempt_is_one_line() -> None:
    assert steps(present_line(of((5, 1), (10, 1), (15, 1)))) == [15, 10, 5]


def test_a_later_attempt_goes_on_beyond_what_was_there() -> None:
    assert steps(present_line(of((5, 1), (10, 1), (15, 2)))) == [15, 10, 5]


def test_what_lies_beyond_an_earlier_step_of_a_later_attempt_was_left() -> None:
    assert present_line(of((5, 1), (10, 1), (15, 1), (8, 2))) == (Copy(8, 2), Copy(5, 1))


def test_a_step_that_was_saved_again_counts_once() -> None:
    assert present_line(of((10, 1), (10, 2))) == (Copy(10, 2),)


@given(copies)
def test_the_newest_attempt_is_always_in_the_present_line(found: set[Copy]) -> None:
    line = present_line(found)

    assert bool(line) == bool(found)
    if found:
        latest = max(copy.attempt for copy in found)
        assert max(copy for copy in found if copy.attempt == latest) == line[0]
    assert list(line) == sorted(line, reverse=True)
    assert present_line(line) == line


@pytest.mark.parametrize(
    ("local", "offered", "fetched"),
    [
        (of(), of(), []),
        (of((10, 1)), of((5, 1), (10, 1)), []),
        (of((5, 1)), of((5, 1), (10, 1), (15, 1)), [15, 10]),
        (of(), of((5, 1), (10, 1)), [10, 5]),
        # Another machine has gone on from step 5: what is here beyond it is of a line that was left.
        (of((5, 1), (10, 1)), of((5, 1), (7, 2)), [7]),
        # This machine went back, and the mirror still has what lay beyond.
        (of((5, 1), (7, 2)), of((5, 1), (10, 1)), []),
    ],
)
def test_what_is_newer_than_all_that_is_here_is_fetched(
    local: set[Copy], offered: set[Copy], fetched: list[int]
) -> None:
    assert steps(choose_fetches(local, offered)) == fetched


def test_what_was_asked_for_is_fetched_only_if_it_is_not_here() -> None:
    assert choose_fetches(of((5, 1)), of((5, 1), (10, 1)), 5) == ()
    assert choose_fetches(of((15, 1)), of((5, 1), (10, 1)), 10) == (Copy(10, 1),)
    assert choose_fetches(of((15, 1)), of((10, 1), (10, 3)), 10) == (Copy(10, 3), Copy(10, 1))
    assert choose_fetches(of((15, 1)), of((10, 1)), 11) == ()


def test_a_folder_that_another_line_has_overtaken_is_noticed() -> None:
    assert left_behind(of((10, 1)), Copy(7, 2))
    assert not left_behind(of((5, 1)), Copy(7, 2))
    assert not left_behind(of((10, 2)), Copy(7, 2))


@pytest.mark.parametrize(
    ("local", "mirrored", "options", "due"),
    [
        ([5, 10, 15], [], {}, [15, 10, 5]),
        ([5, 10, 15], [10], {}, [15, 5]),
        ([5, 10, 15], [5, 10, 15], {}, []),
        ([5, 10, 15, 20], [], {"period_steps": 10}, [15, 5]),
        ([5, 10, 15, 20], [5], {"period_steps": 10}, [15]),
        ([5, 10, 15, 18], [5], {"period_steps": 10, "forced": {18}}, [18, 15]),
        ([12, 24], [], {"period_steps": 10}, [24, 12]),
        # What would not remain there is not sent: it would be sent again and again.
        ([5, 10, 15, 20], [], {"num_to_keep": 2}, [20, 15]),
        ([5, 10], [15, 20], {"num_to_keep": 2}, []),
        ([5, 10], [], {"num_to_keep": 3}, [10, 5]),
    ],
)
def test_what_is_due_goes_the_newest_first(
    local: list[int], mirrored: list[int], options: dict[str, object], due: list[int]
) -> None:
    found = due_uploads({Copy(s, 1) for s in local}, {Copy(s, 1) for s in mirrored}, **options)  # type: ignore[arg-type]

    assert steps(found) == due


def test_a_step_that_was_saved_again_is_sent_again() -> None:
    assert due_uploads(of((10, 2)), of((10, 1))) == (Copy(10, 2),)


@given(copies, copies, st.integers(1, 3))
def test_uploads_come_to_an_end(local: set[Copy], mirrored: set[Copy], keep: int) -> None:
    """Uploading what is due, and applying retention, leaves nothing due."""
    for _ in range(30):
        due = due_uploads(local, mirrored, None, (), keep)
        if not due:
            break
        mirrored = {one for one in mirrored if one.step != due[0].step} | {due[0]}
        mirrored = {verdict.copy for verdict in plan_mirror_retention(mirrored, keep) if verdict.keep}
    assert not due_uploads(local, mirrored, None, (), keep)


def test_all_that_is_due_waits_where_nothing_is_deleted() -> None:
    assert waiting([Copy(10, 1), Copy(5, 1)], [], None, 0, require=False) == (frozenset({5, 10}), ())


def test_so_many_wait_and_the_oldest_are_given_up() -> None:
    due = [Copy(step, 1) for step in (25, 20, 15, 10, 5)]

    assert waiting(due, [], 1, 2, require=False) == (frozenset({25, 20, 15}), (10, 5))
    assert waiting(due, [], 1, 0, require=False) == (frozenset({25}), (20, 15, 10, 5))


def test_where_a_mirror_is_required_all_wait_beside_what_is_there() -> None:
    held, given_up = waiting([Copy(25, 1), Copy(20, 1)], of((5, 1), (10, 1), (15, 1)), 2, 0, require=True)

    assert held == frozenset({25, 20, 15, 10})
    assert given_up == ()


def test_the_newest_stay_on_a_mirror() -> None:
    verdicts = plan_mirror_retention(of((5, 1), (10, 1), (15, 1)), 2)

    assert [(v.copy.step, v.keep) for v in verdicts] == [(5, False), (10, True), (15, True)]


def test_what_is_pinned_stays_and_does_not_count() -> None:
    verdicts = plan_mirror_retention(of((5, 1), (10, 1), (15, 1), (20, 1)), 2, held={5})

    assert [(v.copy.step, v.keep) for v in verdicts] == [(5, True), (10, False), (15, True), (20, True)]


def test_a_line_that_was_left_goes_first() -> None:
    verdicts = plan_mirror_retention(of((5, 1), (10, 1), (15, 1), (8, 2)), 3)

    assert {v.copy: v.keep for v in verdicts} == {
        Copy(5, 1): True,
        Copy(8, 2): True,
        Copy(10, 1): False,
        Copy(15, 1): False,
    }
    assert "left" in verdicts[-1].reason


@given(copies, st.integers(1, 3), st.sets(st.integers(0, 12), max_size=3))
def test_the_newest_is_never_deleted(stored: set[Copy], keep: int, held: set[int]) -> None:
    kept = {verdict.copy for verdict in plan_mirror_retention(stored, keep, held) if verdict.keep}

    if stored:
        assert present_line(stored)[0] in kept
    assert {verdict.copy for verdict in plan_mirror_retention(stored, None)} == stored


def test_tries_become_rarer() -> None:
    assert [back_off_seconds(n) for n in (1, 2, 3, 8, 9, 1000)] == [2, 4, 8, 256, 300, 300]
