"""Ranks that meet through messages: same answers as through collectives, bounded waits, nothing left over."""

import contextlib
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from keepstep.dist.agree import agreed, told_by_all, told_to_main
from keepstep.dist.background import BackgroundWorld
from keepstep.dist.mailbox import LocalMailbox, Mailbox, StoreMailbox
from keepstep.errors import RankFailedError


def on_threads(worlds: list[BackgroundWorld], work: Callable[[BackgroundWorld], Any]) -> list[Any]:
    results: list[Any] = [None] * len(worlds)

    def run(world: BackgroundWorld) -> None:
        try:
            results[world.rank] = work(world)
        except Exception as error:  # noqa: BLE001 - handed to the test
            results[world.rank] = error

    threads = [threading.Thread(target=run, args=(world,)) for world in worlds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return results


def tcp_store() -> Any:
    """Where a process has forked before, torch's server is not always reached."""
    for _ in range(5):
        with contextlib.suppress(dist.DistNetworkError):
            return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=2))
    pytest.skip("a TCPStore of this process cannot be reached")


@pytest.fixture(params=["local", "file", "tcp"])
def mailboxes(request: pytest.FixtureRequest, tmp_path: Path) -> list[Mailbox]:
    if request.param == "local":
        return [LocalMailbox()] * 4
    if request.param == "file":
        store: Any = dist.FileStore(str(tmp_path / "store"), 4)
    else:
        store = tcp_store()
    return [StoreMailbox(store, "test") for _ in range(4)]


def worlds_of(mailboxes: list[Mailbox], **options: Any) -> list[BackgroundWorld]:
    return [BackgroundWorld(rank, len(mailboxes), box, **options) for rank, box in enumerate(mailboxes)]


def test_they_gather_and_hand_out(mailboxes: list[Mailbox]) -> None:
    def work(world: BackgroundWorld) -> Any:
        one = world.gather(world.rank * 10)
        two = world.broadcast("from main" if world.rank == 0 else "not mine")
        three = world.to_main(world.rank)
        four = world.from_main([rank + 100 for rank in range(4)] if world.rank == 0 else [])
        five = told_by_all(world, "telling", lambda: None)
        return one, two, three, four, five

    found = on_threads(worlds_of(mailboxes), work)
    expected = [0, 10, 20, 30], "from main", [], None, [None] * 4
    for rank, result in enumerate(found):
        assert result == (*expected[:2], [0, 1, 2, 3] if rank == 0 else [], rank + 100, [None] * 4)


def test_an_error_is_everybodys(mailboxes: list[Mailbox]) -> None:
    def work(world: BackgroundWorld) -> None:
        with agreed(world, "a good phase"):
            pass

        def fails() -> None:
            if world.rank == 2:
                raise OSError(28, "No space left on device")

        told_to_main(world, "writing", fails)

    found = on_threads(worlds_of(mailboxes), work)
    assert len({str(error) for error in found}) == 1
    assert "writing failed on rank 2 of 4" in str(found[0])
    assert all(isinstance(error, RankFailedError) and error.rank == 2 for error in found)


def test_a_rank_that_gives_no_sign_of_life_is_not_waited_for() -> None:
    box = LocalMailbox()
    worlds = worlds_of([box] * 3, patience=1.5)
    found = on_threads(worlds[:2], lambda world: world.gather(1))
    assert "rank 2 has given no sign of life" in str(found[0])
    assert "rank 0 has given no sign of life" in str(found[1])


def test_a_rank_that_is_slow_and_alive_is_waited_for() -> None:
    worlds = worlds_of([LocalMailbox()] * 2, patience=2.0)

    def work(world: BackgroundWorld) -> list[int]:
        with world.beating():
            if world.rank == 1:
                time.sleep(4)  # a long sync
            return world.gather(world.rank)

    assert on_threads(worlds, work) == [[0, 1], [0, 1]]


def test_messages_are_taken_away() -> None:
    box = LocalMailbox()
    worlds = worlds_of([box] * 3, prefix="7/")
    on_threads(worlds, lambda world: [world.gather(n) for n in range(20)])
    assert len(box._messages) <= 5
    worlds[0].sweep()
    assert not box._messages
