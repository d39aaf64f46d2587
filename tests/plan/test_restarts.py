import pytest

from keepstep.plan.restarts import AttemptEnd, decide

CRASH = AttemptEnd(1, start=0, has_stepped=True)


def test_a_failure_in_training_is_retried_as_often_as_is_allowed() -> None:
    assert [decide(CRASH, used, 2).restart for used in range(4)] == [True, True, False, False]
    assert decide(CRASH, 1, 2).reason == "it failed in training; restart 2 of 2"
    assert decide(CRASH, 2, 2).reason == "all 2 restarts are used"
    assert not decide(CRASH, 0, 0).restart


@pytest.mark.parametrize("code", [0, 2, 3, 4, 75])
@pytest.mark.parametrize("has_stepped", [False, True])
def test_an_end_that_is_final_is_never_retried(code: int, has_stepped: bool) -> None:
    decision = decide(AttemptEnd(code, 0, has_stepped), 0, 100)
    assert not decision.restart
    assert code == 0 or f"(exit code {code})" in decision.reason


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        (None, "it failed before it had looked for checkpoints, and would fail there again"),
        (0, "it failed before step 1, and would fail there again"),
        (200, "it failed before step 201, and would fail there again"),
    ],
)
def test_a_failure_before_the_first_step_is_not_retried(start: int | None, reason: str) -> None:
    decision = decide(AttemptEnd(1, start), 0, 100)
    assert (decision.restart, decision.reason) == (False, reason)


def test_ranks_that_failed_while_they_were_asked_to_stop_stay_stopped() -> None:
    assert not decide(AttemptEnd(1, 0, has_stepped=True, is_stopped=True), 0, 100).restart
