"""A request to go back begins one line, however often a scheduler repeats it."""

from keepstep.plan.fork import Fork, choose_fork


def choose(
    known: list[Fork], submission: str | None, *, finished: tuple[str, ...] = (), step: int = 4
) -> tuple[str, bool]:
    fork, is_new = choose_fork("exp", step, submission, known, finished=finished, taken=("exp.fork-1", "exp"))
    return fork.name, is_new


def test_one_submission_begins_one_line_also_when_that_is_finished() -> None:
    known = [Fork("exp.fork-2", 4, "job-1")]
    assert choose(known, "job-1") == ("exp.fork-2", False)
    assert choose(known, "job-1", finished=("exp.fork-2",)) == ("exp.fork-2", False)
    assert choose(known, "job-2") == ("exp.fork-3", True)
    assert choose(known, None) == ("exp.fork-3", True)


def test_without_a_scheduler_the_line_goes_on_until_it_is_finished() -> None:
    known = [Fork("exp.fork-2", 4)]
    assert choose(known, None) == ("exp.fork-2", False)
    assert choose(known, None, finished=("exp.fork-2",)) == ("exp.fork-3", True)
    assert choose(known, None, step=8) == ("exp.fork-3", True)


def test_names_that_are_taken_are_left_alone() -> None:
    assert choose([], None) == ("exp.fork-2", True)
