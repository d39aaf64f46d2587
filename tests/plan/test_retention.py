import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstep.plan.retention import plan_retention


def kept(steps: list[int], number: int | None, protected: list[int] | None = None) -> list[int]:
    return [v.step for v in plan_retention(steps, number, protected or []) if v.keep]


def test_the_oldest_go() -> None:
    assert kept([5, 10, 15, 20], 2) == [15, 20]
    assert kept([20, 5, 15, 10], 2) == [15, 20]
    assert kept([5, 10], None) == [5, 10]
    assert kept([5], 3) == [5]
    assert kept([], 1) == []


def test_order_is_by_number_and_not_by_text() -> None:
    assert kept([9, 10, 100], 2) == [10, 100]


def test_the_one_just_written_stays_even_if_older_steps_are_newer_by_number() -> None:
    assert kept([6, 10, 15], 2, [6]) == [6, 15]
    assert kept([6, 10, 15], 1, [6]) == [6]


def test_every_verdict_has_a_reason() -> None:
    assert all(v.reason for v in plan_retention([1, 2, 3], 1))


@pytest.mark.parametrize("number", [0, -1])
def test_keeping_none_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        plan_retention([1], number)


@given(st.sets(st.integers(0, 1000)), st.integers(1, 10), st.data())
def test_never_fewer_than_asked_never_without_the_protected(steps: set[int], number: int, data: st.DataObject) -> None:
    protected = data.draw(st.lists(st.sampled_from(sorted(steps)), max_size=1)) if steps else []
    stay = kept(list(steps), number, protected)
    assert len(stay) == min(number, len(steps))
    assert set(protected) <= set(stay)
    assert set(stay) | set(protected) <= steps
    if not protected:
        assert stay == sorted(steps)[-number:]
