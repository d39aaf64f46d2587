"""The guard of a resume in a loop of one's own: the same as a job's, told from `JobState` alone."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import keepstep
from keepstep.data.loader import GlobalBatchLoader
from keepstep.errors import GuardRefusedError
from keepstep.plan.batching import divide
from tests.rig import forks
from tests.rig.jobs import tree_digest

ROWS = torch.arange(24.0).reshape(12, 2)


def loader(rows: torch.Tensor = ROWS, seed: int = 1) -> GlobalBatchLoader:
    return GlobalBatchLoader(TensorDataset(rows), divide(4, 4, 1), 0, seed=seed, shuffle=True)


def checkpointer(folder: Path, data: Any = None, **more: Any) -> keepstep.Checkpointer:
    guards = more.pop("guards", {})
    config = keepstep.CheckpointingConfig(save_dir=str(folder), period_steps=1, guards=guards)
    return keepstep.Checkpointer(config, keepstep.JobState(model=nn.Linear(2, 1), data=data), "run", 9, **more)


def begun(folder: Path, data: Any = None, **more: Any) -> bytes:
    with checkpointer(folder, data, **more) as saver:
        saver.resume()
        saver.save(1)
    return (folder / "run" / "save-1" / "run.json").read_bytes()


def test_the_data_set_behind_the_loader_is_compared(tmp_path: Path) -> None:
    record = json.loads(begun(tmp_path, loader()))
    assert len(record["dataset_sha256"]) == 64
    assert record["elastic"] is True
    before = tree_digest(tmp_path)
    changed = loader(torch.cat([ROWS[1:], ROWS[:1]]))
    saver = checkpointer(tmp_path, changed)
    with pytest.raises(GuardRefusedError, match="dataset_sha256"):
        saver.resume()
    saver.close()
    assert changed.position == 0
    assert tree_digest(tmp_path) == before
    with checkpointer(tmp_path, changed, accept=["dataset_sha256"]) as saver:
        assert saver.resume() == 1
        saver.save(2)
    accepted = json.loads((tmp_path / "run" / "save-2" / "run.json").read_text())["accepted"]
    assert [one["field"] for one in accepted] == ["dataset_sha256"]
    with checkpointer(tmp_path, changed) as saver:
        assert saver.resume() == 2


def test_rows_that_were_added_can_be_accepted_and_the_position_stays(tmp_path: Path) -> None:
    data = loader()
    data.position = 8
    begun(tmp_path, data)
    longer = loader(torch.cat([ROWS, ROWS]))
    with checkpointer(tmp_path, longer, guards={"dataset_sha256": "accept"}) as saver:
        assert saver.resume() == 1
    assert longer.position == 8


def test_a_stateful_loader_is_compared_and_belongs_to_its_world(tmp_path: Path) -> None:
    def data(rows: torch.Tensor) -> StatefulDataLoader[Any]:
        return StatefulDataLoader(TensorDataset(rows), 4)

    assert json.loads(begun(tmp_path, data(ROWS)))["elastic"] is False
    with pytest.raises(GuardRefusedError, match="dataset_sha256"):
        checkpointer(tmp_path, data(ROWS + 1)).resume()
    errors = [end.error for end in forks.run(lambda: checkpointer(tmp_path, data(ROWS)).resume(), 2)]
    assert all(isinstance(error, GuardRefusedError) for error in errors)
    assert all("world_size" in str(error) for error in errors)


def test_facts_of_the_users_own_win(tmp_path: Path) -> None:
    begun(tmp_path, loader(), facts=keepstep.RunFacts("run", dataset_sha256="declared:a", seed=1))
    with pytest.raises(GuardRefusedError, match=r"declared:a +declared:b"):
        checkpointer(tmp_path, loader(), facts=keepstep.RunFacts("run", dataset_sha256="declared:b")).resume()
    facts = keepstep.RunFacts("run", dataset_sha256="declared:a", seed=2)
    with pytest.raises(GuardRefusedError, match=r"seed +1 +2"):
        checkpointer(tmp_path, loader(), facts=facts).resume()


def test_all_ranks_refuse_together(tmp_path: Path) -> None:
    forks.values(lambda: begun(tmp_path, facts=keepstep.RunFacts("run", seed=1)), 2)
    ends = forks.run(lambda: checkpointer(tmp_path, facts=keepstep.RunFacts("run", seed=2)).resume(), 2)
    assert [end.status for end in ends] == [3, 3]
    assert len({str(end.error) for end in ends}) == 1


def test_a_checkpoint_that_a_resume_falls_back_to_is_judged_by_its_own_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    facts = [keepstep.RunFacts("run", seed=seed) for seed in (1, 2)]
    begun(tmp_path, facts=facts[0])
    with checkpointer(tmp_path, facts=facts[1], accept=["seed=2"]) as saver:
        saver.resume()
        saver.save(2)
    (shard,) = (tmp_path / "run" / "save-2").glob("*.distcp")
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x01")
    # Accepted once, so it is again, though the flag is gone.
    with caplog.at_level(logging.WARNING, "keepstep"), checkpointer(tmp_path, facts=facts[1]) as saver:
        assert saver.resume() == 1
    assert any("accepted before" in one for one in caplog.messages)
    with pytest.raises(GuardRefusedError, match=r"seed +1 +3"):
        checkpointer(tmp_path, facts=keepstep.RunFacts("run", seed=3)).resume()


def test_a_record_that_is_damaged_is_found_by_its_digest_and_compared_with_nothing(tmp_path: Path) -> None:
    begun(tmp_path, facts=keepstep.RunFacts("run", seed=1))
    path = tmp_path / "run" / "save-1" / "run.json"
    path.write_bytes(path.read_bytes().replace(b'"seed": 1', b'"seed": 2'))
    with pytest.raises(keepstep.DamagedCheckpointError, match=r"run\.json"):
        checkpointer(tmp_path, facts=keepstep.RunFacts("run", seed=2)).resume()


def test_a_record_with_a_flipped_bit_is_damage_and_no_reason_to_refuse(tmp_path: Path) -> None:
    facts = keepstep.RunFacts("run", seed=1)
    begun(tmp_path, facts=facts)
    with checkpointer(tmp_path, facts=facts) as saver:
        saver.resume()
        saver.save(2)
    path = tmp_path / "run" / "save-2" / "run.json"
    path.write_bytes(path.read_bytes().replace(b'"seed": 1', b'"seed": 3'))
    with checkpointer(tmp_path, facts=facts) as saver:
        assert saver.resume() == 1
    assert (tmp_path / "run" / ".keepstep" / "quarantine").is_dir()


class Counting(TensorDataset):
    """A data set that keeps what it was asked for."""

    def __init__(self, rows: torch.Tensor) -> None:
        super().__init__(rows)
        self.cache: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        return self.cache.setdefault(index, super().__getitem__(index))


def test_the_record_is_that_of_the_start_and_not_of_the_first_save(tmp_path: Path) -> None:
    def data() -> GlobalBatchLoader:
        return GlobalBatchLoader(Counting(ROWS), divide(4, 4, 1), 0, seed=1, shuffle=True)

    loader = data()
    with checkpointer(tmp_path, loader) as saver:
        saver.resume()
        next(iter(loader))
        assert loader.dataset.cache
        saver.save(1)
    with checkpointer(tmp_path, data()) as saver:
        assert saver.resume() == 1


def test_what_cannot_be_accepted_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(keepstep.ConfigError, match="did you mean seed"):
        checkpointer(tmp_path, accept=["sed=8"])


def test_a_note_that_cannot_be_read_accepts_nothing(tmp_path: Path) -> None:
    begun(tmp_path, facts=keepstep.RunFacts("run", seed=1))
    for text in ("[" * 100_000, "{}", "[1]", '[{"field": 1}]', "nonsense"):
        (tmp_path / "run" / ".keepstep").mkdir(exist_ok=True)
        (tmp_path / "run" / ".keepstep" / "accepted.json").write_text(text)
        with pytest.raises(GuardRefusedError, match="seed"):
            checkpointer(tmp_path, facts=keepstep.RunFacts("run", seed=2)).resume()


def test_a_part_of_the_data_that_cannot_be_told_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = loader()
    data.dataset.handle = iter([1])
    with caplog.at_level(logging.INFO, "keepstep"):
        record = json.loads(begun(tmp_path, data))
    assert len(record["dataset_sha256"]) == 64
    assert any(one.startswith("a part of the data set cannot be identified (handle") for one in caplog.messages)
