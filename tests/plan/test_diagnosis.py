"""The first difference decides, and what is nobody's fault is none."""

from dataclasses import replace
from typing import Any

import pytest

from keepstep.plan.diagnosis import diagnose, unseeded
from keepstep.plan.trace import Start, Step, Trace


def step(number: int, **changes: Any) -> Step:
    values: dict[str, Any] = {
        "inputs": (f"in {number}",),
        "outputs": (f"out {number}",),
        "random": {"torch": f"r {number}"},
        "after": {"torch": f"r {number + 1}"},
        "rates": ((0.1,),),
        "notes": {"loss": number},
        "state": {"model.w": f"w {number}", "optimizer.state.w.step": str(number), "tracker.run_id": "x"},
    }
    return Step(number, **(values | changes))


WHOLE = Trace(Start(0, None, {}, {"torch": "r 1"}), {n: step(n) for n in range(1, 7)})
SAVED = WHOLE.steps[3]
RESUMED = Trace(Start(3, None, SAVED.state, SAVED.after), {n: step(n) for n in range(4, 7)})


def changed(number: int, **changes: Any) -> Trace:
    return Trace(RESUMED.start, {**RESUMED.steps, number: step(number, **changes)})


def test_equal_traces_have_no_divergence() -> None:
    assert diagnose(WHOLE, RESUMED, SAVED) is None


@pytest.mark.parametrize(
    ("changes", "component"),
    [
        ({"inputs": ("other",)}, "data"),
        ({"inputs": ("in 1",)}, "data"),
        ({"random": {"torch": "other"}}, "rng"),
        ({"after": {"torch": "other"}}, "rng"),
        ({"outputs": ("other",)}, "model"),
        ({"rates": ()}, "optimizer"),
        ({"rates": ((0.1,), (0.1,))}, "optimizer"),
        ({"rates": ((0.2,),)}, "lr_scheduler"),
        ({"notes": {"loss": 0}}, "loss"),
        ({"state": {**step(5).state, "model.w": "other"}}, "model"),
        ({"state": {**step(5).state, "model.w": "other", "optimizer.state.w.step": "7"}}, "optimizer"),
        ({"state": {**step(5).state, "task.seen": "7"}}, "task"),
        ({"seeded": ("torch.manual_seed at a.py:1",), "random": {"torch": "other"}}, "rng"),
        ({"random": {"torch": "r 1"}}, "rng"),
    ],
)
def test_one_difference_is_blamed_on_one_component(changes: dict[str, Any], component: str) -> None:
    found = diagnose(WHOLE, changed(5, **changes), SAVED, rank=2)
    assert found is not None
    assert (found.component, found.step, found.rank) == (component, 5, 2)


def test_the_first_step_that_differs_counts() -> None:
    late = {**RESUMED.steps, 5: step(5, rates=((0.2,),)), 6: step(6, inputs=("other",))}
    found = diagnose(WHOLE, Trace(RESUMED.start, late), SAVED)
    assert found is not None
    assert (found.component, found.step) == ("lr_scheduler", 5)


def test_a_tracker_is_compared_with_what_was_saved_and_not_with_another_run() -> None:
    assert diagnose(WHOLE, changed(5, state={**step(5).state, "tracker.run_id": "y"}), SAVED) is None
    lost = replace(RESUMED.start, state={**SAVED.state, "tracker.run_id": "y"})
    found = diagnose(WHOLE, Trace(lost, RESUMED.steps), SAVED)
    assert found is not None
    assert found.component == "tracker"
    assert diagnose(WHOLE, Trace(lost, RESUMED.steps), SAVED, rank=1) is None, "the main process's state counts"


def test_a_random_state_left_to_chance_is_no_difference() -> None:
    other = replace(WHOLE.start, random={"torch": "other"})
    assert unseeded(WHOLE.start, other) == {"torch"}
    assert diagnose(WHOLE, changed(5, random={"torch": "other"}), SAVED, chance=frozenset({"torch"})) is None


def test_ignored_state_is_no_difference() -> None:
    trace = changed(5, state={**step(5).state, "task.clock": "1"})
    assert diagnose(WHOLE, trace, SAVED, ["task.*"]) is None
    assert diagnose(WHOLE, trace, SAVED) is not None
