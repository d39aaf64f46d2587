"""A resume that reads from the mirror itself: each rank what it needs, and little more."""

import shutil
import uuid
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import keepstep
from keepstep.config.address import parse_address
from keepstep.dist.mesh import MeshShape, make_mesh
from keepstep.job.parallel import full_value, parallelize
from keepstep.storage.stored import survey_store
from keepstep.storage.stores.apart import ApartStore
from keepstep.storage.stores.opening import open_store
from tests.rig import forks

SIZE = 4


def _resume(base: Path, address: str, *, save: bool) -> tuple[int, int, list[float]]:
    """Save or resume a sharded model. Returns the step, the bytes that this rank has read, and some values."""
    torch.manual_seed(0 if save else 1)
    layers = nn.Sequential(*(nn.Linear(256, 1024, bias=False) for _ in range(4)))
    model = parallelize(layers, make_mesh(MeshShape(1, SIZE), torch.device("cpu")), MeshShape(1, SIZE))
    config = keepstep.CheckpointingConfig(
        save_dir=str(base), period_steps=1, mirror={"address": address, "fetch": "ranges"}
    )
    asked = [0]

    class Counting(ApartStore):
        def _ask(self, request: object, target: memoryview | None = None) -> bytes:
            data = super()._ask(request, target)  # type: ignore[arg-type]
            asked[0] += len(target if target is not None else data)
            return data

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("keepstep.storage.stores.apart.ApartStore", Counting)
        state = keepstep.JobState(model=model)
        with keepstep.Checkpointer(config, state, "exp", total_steps=1, world=forks.world) as checkpointer:
            start = checkpointer.resume()
            if save:
                checkpointer.save_if_due(1)
    values = [full_value(p.detach()).double().sum().item() for p in model.parameters()]
    dist.barrier()
    return start, asked[0], values


def test_each_rank_reads_its_own_bytes_and_little_more(s3: str, tmp_path: Path) -> None:
    address = f"{s3}/{uuid.uuid4().hex}"
    saved = forks.values(lambda: _resume(tmp_path / "a", address, save=True), SIZE)
    shutil.rmtree(tmp_path / "a")
    (checkpoint,) = survey_store(open_store(parse_address(address)), "exp").complete
    assert checkpoint.manifest is not None
    own = [checkpoint.manifest.files[f"__{rank}_0.distcp"].size for rank in range(SIZE)]

    resumed = forks.values(lambda: _resume(tmp_path / "a", address, save=False), SIZE)

    assert [one[0] for one in resumed] == [1] * SIZE
    assert [one[2] for one in resumed] == [one[2] for one in saved]
    assert not (tmp_path / "a" / "exp" / "save-1").exists()
    # The main process looks at the mirror and reads what belongs to the whole checkpoint.
    for rank in range(1, SIZE):
        assert own[rank] > 1_000_000
        assert resumed[rank][1] <= 1.1 * own[rank]
