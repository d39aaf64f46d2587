"""Ranks of one attempt meet in a store that is full of what earlier attempts have left."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import HashStore

from keepstep.dist.generation import own_store
from keepstep.errors import RankFailedError

SECONDS = timedelta(seconds=20)


def meet(store: HashStore, size: int, order: list[int]) -> list[str]:
    """Each rank leaves its number under a key that all attempts use; returns what each found there."""
    barrier = threading.Barrier(size)

    def work(rank: int) -> str:
        own = own_store(store, rank, size, SECONDS)
        if rank == size - 1:
            assert not own.check(["address"])
            own.set("address", f"{rank} of {size}")
        barrier.wait(20)
        return own.get("address").decode()

    with ThreadPoolExecutor(size) as pool:
        return [one.result(30) for one in [pool.submit(work, rank) for rank in order]]


def test_attempts_with_other_numbers_of_ranks_share_a_store_and_read_nothing_of_each_other() -> None:
    store = HashStore()
    for size, order in [(4, [0, 1, 2, 3]), (4, [3, 2, 1, 0]), (3, [1, 2, 0]), (4, [2, 0, 3, 1])]:
        assert meet(store, size, order) == [f"{size - 1} of {size}"] * size


@pytest.mark.parametrize(("rank", "missing"), [(0, 1), (1, 0)])
def test_a_rank_that_does_not_come_is_named(rank: int, missing: int) -> None:
    with pytest.raises(RankFailedError, match=f"no sign of rank {missing}") as caught:
        own_store(HashStore(), rank, 2, timedelta(seconds=0.1))
    assert caught.value.rank == missing
