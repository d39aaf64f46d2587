"""Runs pieces of work on several threads."""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_MOST = 8


def run_all(jobs: Sequence[Callable[[], Any]]) -> None:
    """Run all jobs, some at a time. The first error ends it and is raised, when those that have begun are over."""
    threads = min(len(jobs), _MOST, max(2, os.cpu_count() or 1))
    run_on(threads, iter(jobs), lambda job: job())


def run_on(
    threads: int, pieces: Any, work: Callable[[Any], None], begin_thread: Callable[[], None] = lambda: None
) -> None:
    """Let threads take piece after piece. The first error ends it and is raised; with one thread nothing is started.

    Args:
        threads: how many.
        pieces: an iterator.
        work: what is done with each.
        begin_thread: called by each thread when it starts.
    """
    if threads <= 1:
        for piece in pieces:
            work(piece)
        return
    lock, failed, done = threading.Lock(), threading.Event(), object()

    def take() -> None:
        begin_thread()
        try:
            while not failed.is_set():
                with lock:
                    piece = next(pieces, done)
                if piece is done:
                    return
                work(piece)
        except BaseException:
            failed.set()  # the others need not go on
            raise

    with ThreadPoolExecutor(threads, "keepstep") as pool:
        for future in [pool.submit(take) for _ in range(threads)]:
            future.result()
