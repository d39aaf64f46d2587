import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, MetadataIndex

from keepstep.dcp.metadata import read_metadata, stored_keys
from keepstep.dcp.reader import read
from keepstep.errors import DamagedCheckpointError, UnsupportedStateError
from tests.rig import tiny

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


class Evil:
    def __init__(self, marker: Path) -> None:
        self._marker = str(marker)

    def __reduce__(self) -> Any:
        return os.mkdir, (self._marker,)


def test_what_plain_dcp_wrote_is_understood(tmp_path: Path) -> None:
    state = {"model": {"w": torch.randn(3, 2), "h": torch.ones(2, dtype=torch.bfloat16)}, "n": {"text": [1, "a"]}}
    dcp.save(state, checkpoint_id=tmp_path, no_dist=True)
    keys = stored_keys(read_metadata(tmp_path))
    assert keys["model.w"].shape == torch.Size([3, 2])
    assert keys["model.h"].dtype is torch.bfloat16


def test_metadata_runs_no_code(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Evil(tmp_path / "marker")))
    with pytest.raises(UnsupportedStateError, match=r"asks for (posix|nt)\.mkdir"):
        read_metadata(tmp_path)
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("name", ["torch.load", "builtins.eval", "torch.utils.collect_env.run", "os.system"])
def test_no_other_name_gets_through(tmp_path: Path, name: str) -> None:
    module, _, attribute = name.rpartition(".")
    (tmp_path / ".metadata").write_bytes(b"\x80\x02c" + f"{module}\n{attribute}\n".encode() + b"q\x00.")
    with pytest.raises(UnsupportedStateError, match="which no checkpoint needs"):
        read_metadata(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\x80", b"garbage", pickle.dumps(3), pickle.dumps({"a": 1})])
def test_other_content_is_damage(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".metadata").write_bytes(content)
    with pytest.raises(DamagedCheckpointError):
        read_metadata(tmp_path)


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "a/b"])
def test_places_outside_the_folder_are_refused(tmp_path: Path, path: str) -> None:
    dcp.save({"w": torch.ones(2)}, checkpoint_id=tmp_path, no_dist=True)
    metadata = pickle.loads((tmp_path / ".metadata").read_bytes())
    for place in metadata.storage_data.values():
        place.relative_path = path
    (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(DamagedCheckpointError, match="outside the folder"):
        read_metadata(tmp_path)


def test_a_value_that_needs_general_unpickling_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = tmp_path / "marker"
    with monkeypatch.context() as patch:
        patch.setattr("keepstep.state.stateful.encode", lambda value, path, tensors: Evil(marker))
        tiny.train(tiny.Tiny(str(tmp_path), total=5))
    with pytest.raises(UnsupportedStateError, match=r"task\.\w+ is no plain value"):
        read(tmp_path / "tiny" / "save-5", {}, ["task.count"])
    assert not marker.exists()


def test_a_hundred_thousand_names_of_one_place_take_no_more_than_their_bytes() -> None:
    names = [f"k{i}" for i in range(30_000)]
    metadata = Metadata(
        dict.fromkeys(names, BytesStorageMetadata()),
        None,
        {MetadataIndex(key): _StorageInfo("f", 0, 1) for key in names},
    )
    stored = stored_keys(metadata)
    assert stored["k0"].names == set(names)
    assert stored["k0"].names is stored["k1"].names


def test_our_own_metadata_passes_the_list(tmp_path: Path) -> None:
    tiny.train(tiny.Tiny(str(tmp_path), total=5))
    assert "model.0.weight" in stored_keys(read_metadata(tmp_path / "tiny" / "save-5"))
