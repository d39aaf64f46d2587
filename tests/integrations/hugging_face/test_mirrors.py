"""A Trainer whose checkpoints are copied to a mirror goes on from there when its disk is gone."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from keepstep.errors import StopRequested
from keepstep.plan import layout
from keepstep.storage.stored import survey_store
from keepstep.storage.stores.folder import FolderStore
from tests.integrations.hugging_face.test_stops import SignalAt
from tests.rig.trainers import assert_twins, run, tiny_trainer


def _build(folder: Path, callbacks: Any) -> Any:
    return tiny_trainer(
        folder, callbacks=callbacks, save_strategy="steps", save_steps=5, save_total_limit=2, max_steps=20
    )


def _stored(mirror: Path) -> list[str]:
    found = survey_store(FolderStore(mirror), "run").complete
    return [layout.TRAINER.checkpoint_name(one.found.step) for one in found]


def test_a_trainer_whose_disk_is_gone_goes_on_from_the_mirror(tmp_path: Path) -> None:
    def with_signal(folder: Path, callbacks: Any) -> Any:
        return _build(folder, [*callbacks, SignalAt(12)])

    options = {"handle_signals": True, "mirror": f"file://{tmp_path / 'mirror'}"}
    whole = run(_build, tmp_path / "whole")
    with pytest.raises(StopRequested):
        run(with_signal, tmp_path / "run", options=options)
    assert _stored(tmp_path / "mirror")[-1] == "checkpoint-12"
    shutil.rmtree(tmp_path / "run")

    resumed = run(_build, tmp_path / "run", resume=True, options=options)

    assert resumed.rows == whole.rows_after(12)
    assert_twins(whole, resumed, 12)
    assert _stored(tmp_path / "mirror")[-2:] == ["checkpoint-15", "checkpoint-20"]
    assert sorted(path.name for path in (tmp_path / "run").glob("checkpoint-*")) == ["checkpoint-15", "checkpoint-20"]


def test_a_damaged_checkpoint_is_repaired_from_the_mirror(tmp_path: Path) -> None:
    options = {"mirror": f"file://{tmp_path / 'mirror'}"}
    run(_build, tmp_path / "run", options=options)
    weights = tmp_path / "run" / "checkpoint-20" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)

    run(_build, tmp_path / "run", resume=True, options=options)

    assert weights.read_bytes() == (tmp_path / "mirror" / "run" / "checkpoint-20" / "model.safetensors").read_bytes()
