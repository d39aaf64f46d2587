"""Who is lost: the ranks that do not answer, and none that does."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch.distributed import HashStore

from keepstep.dist.roll import is_silence, lost_text, who_is_lost

HOSTS = ["node-a", "node-a", "node-b", "node-b"]


def test_ranks_that_answer_are_not_lost() -> None:
    store = HashStore()
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(who_is_lost, store, rank, 4, 1.0) for rank in (0, 1, 3)]
        assert [one.result(20) for one in asked] == [[2]] * 3
    assert who_is_lost(store, 2, 4, 20.0) == []


def test_a_store_that_is_gone_tells_nothing() -> None:
    class Gone:
        def clone(self) -> Any:
            raise RuntimeError("Connection reset")

    assert who_is_lost(Gone(), 1, 2, 0.1) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("missed", "text"),
    [
        ([2, 3], "no answer from rank 2 (node-b), rank 3 (node-b) (Timed out)"),
        (None, "rank 1 (node-a) has lost rank 0 (node-a), or the host of the launcher, where the ranks meet (Timed out)"),
        ([], "rank 1 (node-a) has lost the connection to another rank, which says itself why it ended (Timed out)"),
    ],
)
def test_the_message_names_ranks_and_hosts(missed: list[int] | None, text: str) -> None:
    assert lost_text(missed, 1, HOSTS, "Timed out\nmore") == text


def test_many_are_counted() -> None:
    assert lost_text(range(1, 9), 0, [], "").startswith("no answer from rank 1, rank 2, rank 3, rank 4 and 4 more (")


def test_a_closed_connection_is_no_silence() -> None:
    assert is_silence("Timed out waiting 8000ms for recv operation to complete")
    assert not is_silence("Connection closed by peer [10.0.0.2]:1234")
