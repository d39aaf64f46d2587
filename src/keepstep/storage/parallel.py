"""Runs pieces of work on several threads."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

P = TypeVar("P")
_MOST = 8


def run_all(jobs: Sequence[Callable[[], Any]]) -> None:
    """Run all jobs, some at a time. The first error ends it and is raised, when those that have begun are over."""
    threads = min(len(jobs), _MOST, max(2, os.cpu_count() or 1))
    run_on(threads, iter(jobs), lambda job: job())


def run_on(
    threads: int, pieces: Iterator[P], work: Callable[[P], object], begin_thread: Callable[[], None] = lambda: None
) -> None:
    """Let threads take piece after piece; the caller is one of them. The first error ends it and is raised.

    An interpreter that is about to end starts no thread any more: then the caller does all.

    Args:
        threads: how many, the caller included.
        pieces: what there is to do.
        work: what is done with each.
        begin_thread: called by each other thread when it starts.
    """
    lock, errors = threading.Lock(), list[BaseException]()

    def take() -> None:
        try:
            while not errors:
                with lock:
                    piece = next(pieces, None)
                if piece is None:
                    return
                work(piece)
        except BaseException as error:  # noqa: BLE001 - the caller raises it; the others stop
            errors.append(error)

    def run() -> None:
        begin_thread()
        take()

    others = [threading.Thread(target=run, name=f"keepstep-{number}") for number in range(1, threads)]
    started = []
    for thread in others:
        try:
            thread.start()
        except RuntimeError:
            break
        started.append(thread)
    take()
    for thread in started:
        thread.join()
    if errors:
        raise errors[0]
