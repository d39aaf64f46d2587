import os
import signal
import time
from typing import Any

import pytest

from keepstep.data.loader import GlobalBatchLoader
from keepstep.data.workers import ignore_stop_signals
from keepstep.plan.batching import divide
from tests.rig import forks


class Pids:
    """Each sample is the number of the process that reads it."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> int:
        return os.getpid()

    @staticmethod
    def collate(samples: list[int]) -> list[int]:
        return samples


def read(batches: Any) -> int:
    (micro,) = next(batches)
    return int(micro.data[0])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_to_the_whole_group_leaves_workers_at_work(number: int) -> None:
    def work() -> bool:
        signal.signal(number, lambda *_: None)
        batches = iter(GlobalBatchLoader(Pids(), divide(4, None, 1), 0, seed=0, shuffle=False, num_workers=2))
        workers = {read(batches), read(batches)}
        assert os.getpid() not in workers
        if number == signal.SIGTERM:
            # From a process that is not their parent, as a scheduler's.
            child = os.fork()
            if not child:
                for worker in workers:
                    os.kill(worker, number)
                os._exit(0)
            os.waitpid(child, 0)
        else:
            for worker in workers:
                os.kill(worker, number)
        time.sleep(0.2)
        return {read(batches) for _ in range(40)} == workers

    assert forks.values(work) == [True]


def test_a_worker_ends_when_its_parent_says_so() -> None:
    child = os.fork()
    if not child:
        ignore_stop_signals(0)
        time.sleep(30)
        os._exit(1)
    time.sleep(0.3)
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
