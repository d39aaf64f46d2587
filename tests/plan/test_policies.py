"""What policies keep, each by itself and together; and what a disk budget takes."""

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstep.config.bounds import Guard, parse_guard
from keepstep.config.retention import Keep
from keepstep.plan.policies import NO_RULES, Best, EverySteps, Rules, YoungerThan, rules_of
from keepstep.plan.retention import All, Candidate, Newest, Policy, Verdict, plan_retention, retain
from keepstep.plan.scores import Measured

NOW = 1_000_000.0
HOUR = 3600.0


def candidate(step: int, value: float | None = None, created: float | None = 0.0, size: int = 10) -> Candidate:
    scores = None if value is None else Measured(step, f"d{step}", f"save-{step}", {"task/a": value})
    return Candidate(step, size, created, scores)


def kept(verdicts: Sequence[Verdict]) -> list[int]:
    return [one.step for one in verdicts if one.keep]


def reasons(verdicts: Sequence[Verdict]) -> dict[int, str]:
    return {one.step: one.reason for one in verdicts}


def test_one_of_every_so_many_steps_stays_for_ever() -> None:
    steps = [0, 300, 600, 900, 1200, 1500, 1800, 2000, 2100, 2900]
    found = retain([candidate(step) for step in steps], [EverySteps(1000), Newest(1)])
    assert kept(found) == [1200, 2000, 2900]
    assert reasons(found)[1200] == "kept for ever: the first at or after step 1000"
    assert reasons(found)[300] == "not the first of 1000 steps; older than the 1 to keep"


@given(st.sets(st.integers(0, 60)), st.integers(1, 20), st.integers(1, 4))
def test_what_stays_for_ever_is_the_same_whether_a_run_prunes_at_each_save_or_once(
    steps: set[int], every: int, number: int
) -> None:
    policies = [EverySteps(every), Newest(number)]
    there: list[int] = []
    for step in sorted(steps):
        there = kept(retain([candidate(one) for one in [*there, step]], policies))
    assert there == kept(retain([candidate(step) for step in steps], policies))


def test_the_best_stay_wherever_they_are() -> None:
    """Fault C1: the best is the oldest, in the middle, the newest; it never costs the newest its place."""
    for best, number in itertools.product((5, 10, 25, 40), (1, 2, 3)):
        there: list[int] = []
        for step in range(5, 45, 5):
            values = {one: 0.9 if one == best else 0.1 + one / 1000 for one in [*there, step]}
            found = retain(
                [candidate(one, value) for one, value in values.items()],
                [Newest(number), Best("task/a", "max")],
                protected=[step],
                newest=step,
            )
            there = kept(found)
            newest = set(range(5, step + 5, 5)[-number:])
            assert set(there) >= newest
            assert len(there) <= number + 1
            if best <= step:
                assert best in there


def test_without_a_comparable_score_none_is_the_best() -> None:
    doubled = replace(candidate(40), measured=Measured(40, "d", "", {"task/a": 9.0}, {"task/a": (1.0, 9.0)}))
    found = retain(
        [candidate(10, math.nan), candidate(20, 0.5), candidate(30), doubled, candidate(50)],
        [Newest(1), Best("task/a", "max", 3)],
    )
    assert kept(found) == [20, 50]
    assert reasons(found) == {
        10: "its task/a is NaN; older than the 1 to keep",
        20: "number 1 of the 3 best, task/a = 0.5",
        30: "not scored yet; older than the 1 to keep",
        40: "older than the 1 to keep; task/a has two values: 1 and 9",
        50: "among the 1 newest",
    }


def test_what_keeps_no_guard_is_not_among_the_best() -> None:
    def guarded(step: int, value: float, canary: float) -> Candidate:
        return replace(candidate(step), measured=Measured(step, "d", "", {"task/a": value, "canary/a": canary}))

    candidates = [guarded(10, 0.9, 0.5), guarded(20, 0.8, 0.95), candidate(30, 0.99), candidate(40)]
    found = retain(candidates, [Newest(1), Best("task/a", "max", 1, (parse_guard("canary/a>=0.9"),))])
    assert kept(found) == [20, 40]
    assert reasons(found)[10] == "guard canary/a>=0.9: it is 0.5; older than the 1 to keep"


def test_the_lowest_may_be_the_best_and_of_equal_ones_the_earlier_stays() -> None:
    candidates = [candidate(10, 0.5), candidate(20, 0.5), candidate(30, 0.1), candidate(40, 0.9)]
    assert kept(retain(candidates, [Newest(1), Best("task/a", "min", 2)])) == [10, 30, 40]


def test_scores_that_cannot_be_read_cost_nothing_its_place_not_even_for_the_budget() -> None:
    candidates = [candidate(step) for step in (10, 20, 30)]
    found = retain(candidates, [Newest(1), Best("task/a", "max")], scores_known=False, budget_bytes=10)
    assert kept(found) == [10, 20, 30]
    assert "not all scores can be read" in reasons(found)[10]


def test_scores_that_can_be_read_in_part_keep_what_has_none_and_the_best_of_the_others() -> None:
    candidates = [candidate(10, 0.5), candidate(20), candidate(30, 0.9), candidate(40, math.nan), candidate(50, 0.1)]
    found = retain(candidates, [Newest(1), Best("task/a", "max")], scores_known=False, budget_bytes=10)
    assert kept(found) == [20, 30, 40, 50]


def test_the_young_stay_and_a_clock_that_went_back_makes_nothing_old() -> None:
    candidates = [
        candidate(10, created=NOW - 25 * HOUR),
        candidate(20, created=NOW - 23 * HOUR),
        candidate(30, created=NOW + 999 * HOUR),
        candidate(40, created=None),
        candidate(50, created=NOW - 24 * HOUR),
        candidate(60, created=NOW - 90 * HOUR),
    ]
    found = retain(candidates, [Newest(1), YoungerThan(24 * HOUR)], now=NOW)
    assert kept(found) == [20, 30, 40, 60]
    assert reasons(found)[10] == "24 hours old or older; older than the 1 to keep"
    assert reasons(found)[40] == "nobody knows when it was made"


def test_a_budget_takes_first_what_is_worth_least() -> None:
    candidates = [
        candidate(100, 0.9),
        candidate(200, 0.1),
        candidate(250, 0.8),
        candidate(280, 0.1, created=NOW),
        candidate(300, 0.1),
        candidate(310, 0.1),
        candidate(320, 0.1),
    ]
    policies = [Best("task/a", "max", 2), EverySteps(100), Newest(3), YoungerThan(HOUR)]
    expected = [
        (70, [100, 200, 250, 280, 300, 310, 320]),
        (69, [100, 200, 250, 300, 310, 320]),
        (59, [100, 250, 300, 310, 320]),
        (49, [100, 250, 310, 320]),
        (39, [100, 250, 320]),
        (29, [100, 320]),
        (19, [320]),
        (0, [320]),
    ]
    for budget, steps in expected:
        found = retain(candidates, policies, now=NOW, budget_bytes=budget)
        assert kept(found) == steps
    assert reasons(found)[100].startswith("beyond the disk budget of 0 GB (else: kept for ever")


def test_a_budget_alone_keeps_the_newest_that_fit() -> None:
    candidates = [candidate(step, size=3) for step in (10, 20, 30, 40)]
    assert kept(retain(candidates, [All()], budget_bytes=7)) == [30, 40]
    assert kept(retain(candidates, [All()], budget_bytes=7, held=[10])) == [10, 40]
    assert kept(retain(candidates, [All(), Best("task/a", "max")], budget_bytes=None)) == [10, 20, 30, 40]


def test_what_a_reader_holds_for_a_while_pushes_nothing_out_of_a_budget() -> None:
    candidates = [candidate(10, 0.9), candidate(20, 0.1), candidate(30, 0.2), candidate(40, 0.3)]
    policies = [Best("task/a", "max"), Newest(1)]
    assert kept(retain(candidates, policies, budget_bytes=20)) == [10, 40]
    assert kept(retain(candidates, policies, held=[20, 30], budget_bytes=20)) == [20, 30, 40]
    found = retain(candidates, policies, held=[20, 30], passing=[20, 30], budget_bytes=20)
    assert kept(found) == [10, 20, 30, 40]
    assert [one.step for one in found if one.apart] == [20, 30]
    assert reasons(found)[20] == "pinned, or held by a reader (beside the disk budget of 2e-08 GB, until then)"


CANDIDATES = st.lists(
    st.builds(
        candidate,
        st.integers(0, 40),
        st.none() | st.floats(),
        st.none() | st.floats(0, 2 * NOW),
        st.integers(0, 100),
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda one: one.step,
)
POLICY = st.one_of(
    st.builds(Newest, st.integers(1, 5)),
    st.builds(EverySteps, st.integers(1, 15)),
    st.builds(Best, st.just("task/a"), st.sampled_from(["max", "min"]), st.integers(1, 4)),
    st.builds(YoungerThan, st.floats(1, NOW)),
    st.just(All()),
)
STEPS = st.sets(st.integers(0, 40), max_size=4)


@given(
    candidates=CANDIDATES,
    policies=st.lists(POLICY, min_size=1, max_size=4),
    more=POLICY,
    protected=STEPS,
    held=STEPS,
    budget=st.none() | st.integers(0, 600),
    known=st.booleans(),
    data=st.data(),
)
def test_whatever_the_policies(
    candidates: list[Candidate],
    policies: list[Policy],
    more: Policy,
    protected: Collection[int],
    held: Collection[int],
    budget: int | None,
    known: bool,
    data: st.DataObject,
) -> None:
    def decide(chosen: Sequence[Policy], bound: int | None) -> tuple[Verdict, ...]:
        return retain(
            candidates, chosen, protected=protected, held=held, now=NOW, scores_known=known, budget_bytes=bound
        )

    steps = {one.step for one in candidates}
    untouchable = {max(steps), *(steps & set(protected)), *(steps & set(held))}
    found = decide(policies, budget)
    assert [one.step for one in found] == sorted(steps)
    assert all(one.reason for one in found)
    assert untouchable <= set(kept(found))
    assert set(kept(decide(policies, None))) <= set(kept(decide([*policies, more], None)))
    assert decide(data.draw(st.permutations(policies)), budget) == found
    if budget is not None:
        assert set(kept(found)) <= set(kept(decide(policies, None)))
        if known and sum(one.size for one in found if one.keep) > budget:
            assert set(kept(found)) == untouchable


@given(st.sets(st.integers(0, 40), min_size=1), st.integers(1, 5), STEPS, STEPS)
def test_the_number_alone_decides_as_ever(
    steps: set[int], number: int, protected: Collection[int], held: Collection[int]
) -> None:
    """The rule in its own words: the protected count, the held do not, the rest of the room is for the newest."""
    fixed = steps & set(protected)
    free = sorted(steps - fixed - set(held), reverse=True)
    expected = fixed | (steps & set(held)) | set(free[: max(0, number - len(fixed))])
    assert kept(plan_retention(steps, number, protected, held)) == sorted(expected)


def test_a_configuration_names_the_same_policies() -> None:
    keep = Keep.model_validate(
        {
            "every_steps": 1000,
            "best": [
                {"metric": "task/accuracy", "mode": "max", "number": 3, "guards": "canary/a>=0.9"},
                {"metric": "task/loss", "mode": "min"},
            ],
            "younger_than_hours": 24,
            "disk_budget_gb": 0.5,
        }
    )
    rules = rules_of(keep)
    assert rules.policies == (
        Best("task/accuracy", "max", 3, (Guard("canary/a", ">=", 0.9),)),
        Best("task/loss", "min", 1),
        EverySteps(1000),
        YoungerThan(86400.0),
    )
    assert rules.budget_bytes == 500_000_000
    assert (rules.needs_scores, rules.needs_ages, rules.metrics) == (True, True, ("task/accuracy", "task/loss"))
    assert rules_of(None) == rules_of(Keep()) == NO_RULES
    assert rules.beside(2)[0] == Newest(2)
    assert rules.beside(None)[0] == All()
    assert [Rules().may_delete(None), Rules().may_delete(1), rules.may_delete(None)] == [False, True, True]


@pytest.mark.parametrize("number", [0, -3])
def test_no_rule_keeps_fewer_than_one_of_the_newest(number: int) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        Newest(number)


@given(candidates=CANDIDATES, policies=st.lists(POLICY, min_size=1, max_size=4), held=STEPS, budget=st.integers(0, 600))
def test_a_budget_holds_without_what_is_let_go_by_itself(
    candidates: list[Candidate], policies: list[Policy], held: Collection[int], budget: int
) -> None:
    found = retain(candidates, policies, held=held, passing=held, now=NOW, budget_bytes=budget)
    counted = [one for one in found if one.keep and not one.apart]
    steps = {one.step for one in candidates}
    newest = max(steps)
    assert {one.step for one in found if one.apart} <= set(held) & steps <= set(kept(found))
    assert sum(one.size for one in counted) <= budget or [one.step for one in counted] == [newest]
