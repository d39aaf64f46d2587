"""Traces survive being written, and stops are chosen where faults show."""

from hypothesis import given
from hypothesis import strategies as st

from keepstep.plan.trace import Start, Step, choose_stops, from_lines, to_line

START = Start(3, 20, {"model.w": "a"}, {"torch": "b"})
STEP = Step(
    4,
    inputs=("i",),
    outputs=("o",),
    random={"torch": "c"},
    entered={"model.w": "a"},
    rates=((0.1, 0.2), (0.3,)),
    seeded=("torch.manual_seed at train.py:3",),
    steps_in_epoch=7,
    notes={"loss": 0.1},
    state={"model.w": "d"},
    after={"torch": "e"},
)


def test_a_trace_comes_back_from_its_lines() -> None:
    trace = from_lines([to_line(START), to_line(STEP)])
    assert trace is not None
    assert (trace.start, trace.steps) == (START, {4: STEP})
    assert from_lines([]) is None


def test_stops_lie_around_the_end_of_the_epoch() -> None:
    assert choose_stops(10, None).stops == (3, 10, 12)
    assert choose_stops(None, None).stops == (3, 13)
    assert choose_stops(5000, None).stops == (3,)
    assert choose_stops(None, 1).stops == ()
    assert choose_stops(None, 2).stops == (1,)


@given(st.none() | st.integers(1, 10**6), st.none() | st.integers(1, 10**6))
def test_every_stop_leaves_a_step_to_compare(epoch: int | None, total: int | None) -> None:
    chosen = choose_stops(epoch, total)
    assert total is None or chosen.last <= total
    assert all(1 <= stop < chosen.last for stop in chosen.stops)
    assert chosen.stops or total == 1
    assert chosen.last < 210
