"""A save at every step, random delays, a rank killed at a random moment: no hang, and whatever is committed loads."""

import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import keepstep
from keepstep.checkpoint import save as save_module
from keepstep.dcp.metadata import read_metadata, stored_keys
from keepstep.dcp.reader import read
from keepstep.dist import background
from keepstep.storage import writer as writer_module
from keepstep.storage.survey import survey
from tests.rig import forks

RANKS = 4


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "list": [self.count] * 3}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def _slowly(rng: random.Random) -> None:
    """Delay this rank's writes and its commit at random."""
    write, commit = writer_module._Target.write, save_module._commit

    def slow_write(self: Any, piece: memoryview, offset: int) -> None:
        time.sleep(rng.random() * 0.02)
        write(self, piece, offset)

    def slow_commit(*arguments: Any) -> None:
        time.sleep(rng.random() * 0.01)
        commit(*arguments)

    writer_module._Target.write, save_module._commit = slow_write, slow_commit


def _train(folder: Path, mode: str, until: int, seed: int, kill_after: float | None) -> int:
    """Go on from the newest checkpoint; one rank may kill itself on the way. Returns the last step."""
    rank = forks.world.rank
    background.PATIENCE_SECONDS = 3.0  # ranks die all the time here
    rng = random.Random(f"{seed} {rank}")
    _slowly(rng)
    model = nn.Linear(130, 130)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    counter = Counter()
    config = keepstep.CheckpointingConfig(save_dir=str(folder), period_steps=1, num_to_keep=3, mode=mode)
    state = keepstep.JobState(model=model, task=counter)
    if kill_after is not None:
        threading.Timer(kill_after, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    with keepstep.Checkpointer(config, state, world=forks.world, total_steps=until, handle_signals=False) as saver:
        start = saver.resume()
        assert counter.count == start
        assert model.weight.unique().tolist() == [float(start)]
        for step in range(start + 1, until + 1):
            with torch.no_grad():
                model.weight.fill_(step)
            counter.count = step
            time.sleep(rng.random() * 0.005)
            saver.save_if_due(step)
    return counter.count


def _soak(folder: Path, mode: str, until: int, seed: int) -> tuple[int, int]:
    """Start, kill, start again, until the last step. Returns the numbers of attempts and of kills."""
    rng = random.Random(seed)
    attempts = kills = 0
    while True:
        attempts += 1
        assert attempts < 10 * until, "no progress"
        victim, after = rng.randrange(RANKS), rng.uniform(0.05, 1.5)
        last = rng.random() < 0.1

        def work(victim: int = victim, after: float = after, last: bool = last, attempt: int = attempts) -> int:
            doomed = forks.world.rank == victim and not last
            return _train(folder, mode, until, seed * 1000 + attempt, after if doomed else None)

        before = max([0, *(c.found.step for c in survey(folder).complete)])
        ended = forks.run(work, RANKS, seconds=90)
        kills += ended[victim].killed
        for checkpoint in survey(folder).complete:
            step = checkpoint.found.step
            keys = stored_keys(read_metadata(checkpoint.path))
            tensors = {key: torch.empty(s.shape, dtype=s.dtype) for key, s in keys.items() if s.is_tensor}
            trees = read(checkpoint.path, tensors, ["task.count", "task.list"])
            assert tensors["model.weight"].unique().tolist() == [float(step)]
            assert (trees["task.count"], trees["task.list"]) == (step, [step] * 3)
        newest = max([0, *(c.found.step for c in survey(folder).complete)])
        assert newest >= before
        if all(end.value == until for end in ended):
            assert newest == until
            return attempts, kills


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_short_soak(tmp_path: Path, mode: str) -> None:
    attempts, kills = _soak(tmp_path, mode, until=12, seed=1)
    print(f"\n{mode}: 12 steps, {attempts} attempts, {kills} kills")


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_long_soak(tmp_path: Path, mode: str) -> None:
    attempts, kills = _soak(tmp_path, mode, until=500, seed=2)
    print(f"\n{mode}: 500 steps, {attempts} attempts, {kills} kills")
    assert kills >= 10
