import os

import pytest

from keepstep.dist.agree import agreed
from keepstep.dist.world import SingleWorld
from keepstep.errors import ConfigError, RankFailedError, SaveError
from tests.rig import forks


def fail_on(ranks: set[int], error: Exception) -> str:
    try:
        with agreed(forks.world, "writing shards", SaveError):
            if forks.world.rank in ranks:
                raise error
    except RankFailedError as raised:
        assert (raised.__cause__ is error) == (forks.world.rank in ranks)
        return f"{type(raised).__name__} {raised.rank} {raised.phase}: {raised}"
    except ConfigError as raised:
        return f"ConfigError: {raised}"
    return "fine"


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_one_failure_is_the_same_error_everywhere_and_names_the_rank(rank: int) -> None:
    messages = forks.values(lambda: fail_on({rank}, OSError(28, "No space left on device", "/x")), 4, seconds=20)
    assert len(set(messages)) == 1
    assert messages[0].startswith(f"SaveError {rank} writing shards: writing shards failed on rank {rank} of 4 (")
    assert "No space left on device: '/x'" in messages[0]


def test_several_failures_name_the_first_and_count_the_others() -> None:
    messages = forks.values(lambda: fail_on({1, 2}, ValueError("bad")), 3)
    assert len(set(messages)) == 1
    assert "on rank 1 of 3" in messages[0]
    assert "1 more ranks failed" in messages[0]


def test_no_failure_is_no_error() -> None:
    assert forks.values(lambda: fail_on(set(), ValueError()), 2) == ["fine", "fine"]


def test_an_error_of_ours_that_all_ranks_have_is_raised_as_it_is() -> None:
    assert forks.values(lambda: fail_on({0, 1}, ConfigError("no")), 2) == ["ConfigError: no"] * 2


def test_in_a_world_of_one_the_cause_is_kept() -> None:
    with pytest.raises(SaveError, match="writing failed: ValueError: bad") as caught, agreed(
        SingleWorld(), "writing", SaveError
    ):
        raise ValueError("bad")
    assert isinstance(caught.value.__cause__, ValueError)


def test_an_interrupt_is_never_swallowed() -> None:
    with pytest.raises(KeyboardInterrupt), agreed(SingleWorld(), "writing"):
        raise KeyboardInterrupt


def test_ranks_share_values() -> None:
    def share() -> tuple[list[int], int]:
        return forks.world.gather(os.getpid()), forks.world.broadcast(os.getpid())

    results = forks.values(share, 3)
    assert all(one == results[0] for one in results)
    assert len(set(results[0][0])) == 3
    assert results[0][1] == results[0][0][0]
