"""Runs pieces of I/O on several threads."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_MOST = 8


def run_all(jobs: Sequence[Callable[[], Any]]) -> None:
    """Run all jobs, some at a time. The first error ends it and is raised, when those that have begun are over."""
    threads = min(len(jobs), _MOST, max(2, os.cpu_count() or 1))
    if threads <= 1:
        for job in jobs:
            job()
        return
    with ThreadPoolExecutor(threads, "keepstep-read") as pool:
        futures = [pool.submit(job) for job in jobs]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
