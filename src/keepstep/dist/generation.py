"""A store of this attempt's own, out of one that torch elastic keeps across restarts.

torchrun's agent serves one store for all attempts of a job (unless TORCH_DISABLE_SHARE_RDZV_TCP_STORE is set), and torch
puts no prefix before what the ranks leave there: after a restart they read addresses of ranks that are gone. The
count of restarts is no prefix that all share: each agent counts its own. So the main process names the attempt.
"""

import secrets
import time
from datetime import timedelta

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from keepstep.errors import RankFailedError

_PAUSE = 0.02
_PREFIX = "keepstep/generation"


def own_store(store: Store, rank: int, size: int, timeout: timedelta) -> PrefixStore:
    """The part of a store that only the ranks of this attempt know. Collective.

    A rank leaves a word that nobody else has, and waits for the answer to it; the main process answers each word that
    it finds, those of earlier attempts too, until all ranks have said that they got their answer.

    Args:
        store: that all ranks share.
        rank, size: of this attempt.
        timeout: for all ranks to come.

    Raises:
        RankFailedError: not all have come.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    if rank:
        word = secrets.token_hex(8)
        store.set(f"{_PREFIX}/asks/{rank}", word)
        _await(store, f"{_PREFIX}/answer/{word}", deadline, [0])
        name = store.get(f"{_PREFIX}/answer/{word}").decode()
        store.set(f"{_PREFIX}/{name}/{rank}", "here")
        return PrefixStore(f"keepstep/{name}", store)
    name = secrets.token_hex(8)
    waiting = set(range(1, size))
    while waiting:
        for other in sorted(waiting):
            if store.check([f"{_PREFIX}/asks/{other}"]):
                word = store.get(f"{_PREFIX}/asks/{other}").decode()
                store.set(f"{_PREFIX}/answer/{word}", name)
            if store.check([f"{_PREFIX}/{name}/{other}"]):
                waiting.remove(other)
        if waiting:
            _pause(deadline, sorted(waiting))
    return PrefixStore(f"keepstep/{name}", store)


def _await(store: Store, key: str, deadline: float, ranks: list[int]) -> None:
    while not store.check([key]):
        _pause(deadline, ranks)


def _pause(deadline: float, missing: list[int]) -> None:
    if time.monotonic() >= deadline:
        which = ", ".join(str(rank) for rank in missing)
        raise RankFailedError(f"starting the job: no sign of rank {which}", rank=missing[0], phase="starting the job")
    time.sleep(_PAUSE)
