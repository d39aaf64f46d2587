"""A user's own StatefulDataLoader: the same batches and the same random numbers after any stop."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

import keepstep
from keepstep.data.stream import Stream
from keepstep.dist.world import SingleWorld

LENGTH, BATCH, EPOCHS = 11, 3, 3
PER_EPOCH = -(-LENGTH // BATCH)
LAST = PER_EPOCH * EPOCHS


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
    with keepstep.Checkpointer(config, state, total_steps=LAST) as checkpointer:
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


@pytest.mark.parametrize(
    ("workers", "persistent", "stops"),
    [
        (0, False, range(1, LAST)),
        (2, False, (2,)),
        (2, True, (PER_EPOCH,)),
        pytest.param(2, False, (PER_EPOCH, PER_EPOCH + 1, 2 * PER_EPOCH), marks=pytest.mark.slow),
        pytest.param(2, True, (2, PER_EPOCH + 1, 2 * PER_EPOCH), marks=pytest.mark.slow),
    ],
)
def test_a_stop_at_every_step_goes_on_exactly(
    tmp_path: Path, workers: int, persistent: bool, stops: Sequence[int]
) -> None:
    whole = run(tmp_path / "whole", None, workers, persistent)
    assert len(whole) == LAST
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


class Endless(torch.utils.data.IterableDataset[Any]):
    """A stream without a length and without a state; each worker has its part."""

    def __iter__(self) -> Any:
        info = torch.utils.data.get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        return iter(range(worker, LENGTH, workers))


@pytest.mark.parametrize(
    ("workers", "only_at_the_end"), [(0, False), (2, True), pytest.param(2, False, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_stream_stopped_at_an_epochs_end_has_no_empty_epoch(
    tmp_path: Path, workers: int, only_at_the_end: bool, wrapped: bool
) -> None:
    def run(folder: Path, stop: int | None) -> list[Any]:
        torch.manual_seed(3)
        data = Stream(Endless()) if wrapped else Endless()
        loader = StatefulDataLoader(data, BATCH, num_workers=workers)
        counts = nn.Module()
        counts.register_buffer("epoch", torch.zeros((), dtype=torch.int64))
        counts.register_buffer("batches", torch.zeros((), dtype=torch.int64))
        config = keepstep.CheckpointingConfig(save_dir=str(folder), period_steps=1, num_to_keep=1)
        rows: list[Any] = []
        with keepstep.Checkpointer(config, keepstep.JobState(model=counts, data=loader)) as checkpointer:
            step = checkpointer.resume()
            while step < 12:
                epoch, batches = int(counts.epoch), 0
                if wrapped:
                    data.set_epoch(epoch)
                for batch in loader:
                    step += 1
                    batches += 1
                    rows.append((epoch, batch.tolist(), torch.rand(1).item()))
                    counts.batches += 1
                    if counts.batches == len(per_epoch):
                        counts.epoch, counts.batches = counts.epoch + 1, counts.batches * 0
                    checkpointer.save_if_due(step)
                    if step == stop:
                        return rows
                assert batches, f"epoch {epoch} was empty"
        return rows

    per_epoch = list(StatefulDataLoader(Endless(), BATCH, num_workers=workers))
    whole = run(tmp_path / "whole", None)
    stops = range(1, 10) if workers == 0 else (2, len(per_epoch), len(per_epoch) + 1)
    for stop in [len(per_epoch)] if only_at_the_end else stops:
        folder = tmp_path / str(stop)
        assert run(folder, stop) + run(folder, None) == whole, f"stopped at {stop}"


def test_another_number_of_workers_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    run(tmp_path, 2, 2, False)
    for workers in (0, 3):
        with pytest.raises(keepstep.StateMismatchError, match=f"saved with 2 workers.* has {workers}"):
            run(tmp_path, None, workers, False)
    assert run(tmp_path, None, 2, False)


def test_a_shuffle_buffer_at_risk_is_said(caplog: pytest.LogCaptureFixture) -> None:
    from tests.rig.streams import shuffled

    keepstep.JobState(data=StatefulDataLoader(shuffled(), 2)).components(SingleWorld())
    assert "up to 8 samples in the shuffle buffer" in caplog.text
    caplog.clear()
    keepstep.JobState(data=StatefulDataLoader(Stream(shuffled()), 2)).components(SingleWorld())
    assert not caplog.text


class TellsEpochs(torch.utils.data.IterableDataset[Any]):
    """Its order depends on the epoch that it was told; it says how long it is."""

    def __init__(self) -> None:
        self.number = 0

    def set_epoch(self, epoch: int) -> None:
        self.number = epoch

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Any:
        return iter(range(100 * self.number, 100 * self.number + LENGTH))


def distributed(workers: int) -> tuple[Any, Any]:
    sampler = torch.utils.data.DistributedSampler(Numbers(), 1, 0, shuffle=True, seed=1)
    return StatefulDataLoader(Numbers(), BATCH, sampler=sampler, num_workers=workers), sampler.set_epoch


def stateful_distributed(workers: int) -> tuple[Any, Any]:
    sampler = StatefulDistributedSampler(Numbers(), 1, 0, shuffle=True, seed=1)
    return StatefulDataLoader(Numbers(), BATCH, sampler=sampler, num_workers=workers), sampler.set_epoch


def told(workers: int) -> tuple[Any, Any]:
    data = TellsEpochs()
    return StatefulDataLoader(data, BATCH, num_workers=workers), data.set_epoch


def with_generator(workers: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(9)
    loader = StatefulDataLoader(Numbers(), BATCH, shuffle=True, generator=generator, num_workers=workers)
    return loader, lambda epoch: None


@pytest.mark.parametrize(
    ("make", "workers", "stops"),
    [
        *((make, 0, range(1, LAST)) for make in (distributed, told, with_generator)),
        (told, 1, (2, PER_EPOCH)),
        *((make, 2, (2, PER_EPOCH)) for make in (distributed, stateful_distributed, with_generator)),
        *(
            pytest.param(make, workers, (PER_EPOCH + 1, 9), marks=pytest.mark.slow)
            for make, workers in ((told, 1), (distributed, 2), (stateful_distributed, 2), (with_generator, 2))
        ),
    ],
)
def test_set_epoch_and_generators_after_the_resume(
    tmp_path: Path, make: Any, workers: int, stops: Sequence[int]
) -> None:
    """What a user does between resume() and the first batch counts, as it does without keepstep."""

    def run(folder: Path, stop: int | None) -> list[Any]:
        torch.manual_seed(3)
        loader, set_epoch = make(workers)
        config = keepstep.CheckpointingConfig(save_dir=str(folder), period_steps=1, num_to_keep=1)
        rows: list[Any] = []
        with keepstep.Checkpointer(config, keepstep.JobState(data=loader)) as checkpointer:
            step = checkpointer.resume()
            for epoch in range(step // PER_EPOCH, EPOCHS):
                set_epoch(epoch)
                for batch in loader:
                    step += 1
                    rows.append((epoch, batch.tolist(), torch.rand(1).item()))
                    checkpointer.save_if_due(step)
                    if step == stop:
                        return rows
        return rows

    whole = run(tmp_path / "whole", None)
    assert len(whole) == LAST
    for stop in stops:
        folder = tmp_path / str(stop)
        assert run(folder, stop) + run(folder, None) == whole, f"stopped at {stop}"


def test_a_chain_of_stops_in_a_stream_that_is_read_again(tmp_path: Path) -> None:
    def run(stop: int | None) -> list[int]:
        loader = StatefulDataLoader(Endless(), 1)
        config = keepstep.CheckpointingConfig(save_dir=str(tmp_path), period_steps=1, num_to_keep=1)
        rows: list[int] = []
        with keepstep.Checkpointer(config, keepstep.JobState(data=loader)) as checkpointer:
            step = checkpointer.resume()
            for batch in loader:
                step += 1
                rows += batch.tolist()
                checkpointer.save_if_due(step)
                if step == stop:
                    break
        return rows

    assert run(2) + run(4) + run(7) + run(None) == list(range(LENGTH))


@pytest.mark.parametrize("kind", ["RandomSampler", "WeightedRandomSampler"])
def test_samplers_that_keep_no_position_are_named(caplog: pytest.LogCaptureFixture, kind: str) -> None:
    samplers = {
        "RandomSampler": lambda: torch.utils.data.RandomSampler(Numbers()),
        "WeightedRandomSampler": lambda: torch.utils.data.WeightedRandomSampler([1.0] * LENGTH, LENGTH),
    }
    loader = StatefulDataLoader(Numbers(), BATCH, sampler=samplers[kind]())
    keepstep.JobState(data=loader).components(SingleWorld())
    assert f"its {kind} of torch.utils.data keeps no position" in caplog.text
    caplog.clear()
    keepstep.JobState(data=StatefulDataLoader(Numbers(), BATCH, shuffle=True)).components(SingleWorld())
    assert not caplog.text
