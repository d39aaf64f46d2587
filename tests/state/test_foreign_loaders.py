"""A user's own StatefulDataLoader: the same batches and the same random numbers after any stop."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader

import keepstep

LENGTH, BATCH, EPOCHS = 11, 3, 3
PER_EPOCH = -(-LENGTH // BATCH)


class Numbers(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        return index


def run(folder: Path, stop: int | None, workers: int, persistent: bool) -> list[Any]:
    """Rows of (epoch, batch, random number); ends after `stop` steps if given."""
    torch.manual_seed(3)
    loader = StatefulDataLoader(
        Numbers(), BATCH, shuffle=True, num_workers=workers, persistent_workers=persistent and workers > 0
    )
    epoch_count = nn.Module()
    epoch_count.register_buffer("epoch", torch.zeros((), dtype=torch.int64))
    state = keepstep.JobState(model=epoch_count, data=loader)
    config = keepstep.CheckpointingConfig(save_dir=str(folder), period_steps=1, num_to_keep=1)
    rows: list[Any] = []
    with keepstep.Checkpointer(config, state, total_steps=PER_EPOCH * EPOCHS) as checkpointer:
        step = checkpointer.resume()
        begin = step // PER_EPOCH
        for epoch in range(begin, EPOCHS):
            batches = 0
            for batch in loader:
                step += 1
                batches += 1
                rows.append((epoch, batch.tolist(), torch.rand(1).item()))
                checkpointer.save_if_due(step)
                if step == stop:
                    return rows
            assert batches, f"epoch {epoch} was empty"
    return rows


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_a_stop_at_every_step_goes_on_exactly(tmp_path: Path, workers: int, persistent: bool) -> None:
    whole = run(tmp_path / "whole", None, workers, persistent)
    assert len(whole) == PER_EPOCH * EPOCHS
    stops = range(1, PER_EPOCH * EPOCHS) if workers == 0 else (2, PER_EPOCH, PER_EPOCH + 1, 2 * PER_EPOCH)
    for stop in stops:
        folder = tmp_path / str(stop)
        rows = run(folder, stop, workers, persistent) + run(folder, None, workers, persistent)
        assert rows == whole, f"stopped at {stop}"


def test_saving_draws_no_random_number(tmp_path: Path) -> None:
    loader = StatefulDataLoader(Numbers(), BATCH, shuffle=True)
    config = keepstep.CheckpointingConfig(save_dir=str(tmp_path), period_steps=1)
    with keepstep.Checkpointer(config, keepstep.JobState(data=loader)) as checkpointer:
        before = torch.get_rng_state()
        checkpointer.save(1)  # the loader makes its first iterator here, and draws
        assert torch.equal(torch.get_rng_state(), before)
