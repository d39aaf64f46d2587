import pytest

from keepstep.plan.elastic import Launcher, is_restart_after_stop

ASKED = [Launcher("job", "a", 1), Launcher("job", "b", 0)]


@pytest.mark.parametrize(
    ("me", "expected"),
    [
        (Launcher("job", "a", 2), True),
        (Launcher("job", "b", 1), True),
        (Launcher("job", "a", 1), False),  # machines came or went: no restart was counted
        (Launcher("job", "c", 3), False),  # its ranks left with the others
        (Launcher("another job", "a", 2), False),
        (None, False),
    ],
)
def test_only_an_agent_whose_ranks_were_asked_and_that_counts_a_restart_tells_of_a_stop(
    me: Launcher | None, expected: bool
) -> None:
    assert is_restart_after_stop(ASKED, me) is expected


def test_without_a_stop_nothing_was_asked() -> None:
    assert not is_restart_after_stop([], Launcher("job", "a", 2))
