"""Each file of a checkpoint replaced by one that runs code, leads elsewhere or never ends."""

import os
import pickle
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from typer.testing import CliRunner

import keepstep
from keepstep.cli.main import app
from keepstep.dcp.metadata import parse_metadata
from keepstep.errors import DamagedCheckpointError, KeepstepError, UnsupportedStateError
from keepstep.plan.manifest import FileRecord, from_text, to_text
from keepstep.storage.digest import digest_of_bytes
from tests.rig import forks

pytestmark = pytest.mark.filterwarnings("ignore")

FILES = ("manifest.json", "run.json", ".metadata", "__0.index", "__0_0.distcp")


class Evil:
    def __init__(self, marker: Path) -> None:
        self._marker = str(marker)

    def __reduce__(self) -> Any:
        return os.mkdir, (self._marker,)


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    def hang(*_: object) -> NoReturn:
        raise AssertionError("it waits for ever")

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def checkpointer(folder: Path, model: nn.Module) -> keepstep.Checkpointer:
    config = keepstep.CheckpointingConfig(save_dir=str(folder), period_steps=5)
    return keepstep.Checkpointer(config, keepstep.JobState(model=model), "run", world=forks.world)


@pytest.fixture
def save(tmp_path: Path) -> Path:
    with checkpointer(tmp_path, nn.Linear(20, 20)) as saver:
        saver.save(5)
    return tmp_path / "run" / "save-5"


def sign(save: Path) -> None:
    """Give the manifest the sizes and digests of the files as they are."""
    manifest = from_text((save / "manifest.json").read_text(), digest_of_bytes)
    for name in manifest.files:
        data = (save / name).read_bytes()
        manifest.files[name] = FileRecord(len(data), digest_of_bytes(data))  # type: ignore[index]
    (save / "manifest.json").write_text(to_text(manifest, digest_of_bytes))


def use(save: Path) -> list[str]:
    """Everything that reads a checkpoint. Returns what the commands printed."""
    outputs = []
    for words in (
        ["ls", str(save.parent)],
        ["show", str(save)],
        ["verify", str(save)],
        ["verify", str(save.parent)],
        ["diff", str(save), str(save)],
    ):
        result = CliRunner().invoke(app, words)
        assert result.exception is None or isinstance(result.exception, KeepstepError | SystemExit), result.exception
        outputs.append(result.output)
    with pytest.raises(KeepstepError):
        keepstep.load_dcp({"model": dict(nn.Linear(20, 20).state_dict())}, save)
    with pytest.raises(KeepstepError), checkpointer(save.parent.parent, nn.Linear(20, 20)) as saver:
        saver.resume(5)
    return outputs


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_no_file_runs_code(save: Path, tmp_path: Path, name: str, signed: bool) -> None:
    marker = tmp_path / "marker"
    (save / name).write_bytes(pickle.dumps(Evil(marker)))
    if signed and name not in ("manifest.json", "run.json"):
        sign(save)
    if name in ("manifest.json", "run.json", "__0.index"):
        # DCP's own reader needs neither, and the other files are as they were.
        with pytest.raises(KeepstepError), checkpointer(tmp_path, nn.Linear(20, 20)) as saver:
            saver.resume(5)
    else:
        use(save)
    assert not marker.exists()


@pytest.mark.parametrize("kind", ["link", "fifo", "device", "folder"])
@pytest.mark.parametrize("name", FILES)
def test_no_file_leads_elsewhere_or_never_ends(save: Path, tmp_path: Path, name: str, kind: str) -> None:
    file = save / name
    match kind:
        case "link":
            shutil.copy(file, tmp_path / "elsewhere")
            file.unlink()
            file.symlink_to(tmp_path / "elsewhere")
        case "fifo":
            file.unlink()
            os.mkfifo(file)
        case "device":
            file.unlink()
            file.symlink_to("/dev/zero")
        case _:
            file.unlink()
            file.mkdir()
    for words in (["ls", str(save.parent)], ["show", str(save)], ["verify", str(save)], ["diff", str(save), str(save)]):
        result = CliRunner().invoke(app, words)
        assert result.exception is None or isinstance(result.exception, KeepstepError | SystemExit), result.exception
    with pytest.raises(KeepstepError), checkpointer(tmp_path, nn.Linear(20, 20)) as saver:
        saver.resume(5)
    if name in (".metadata", "__0_0.distcp"):
        with pytest.raises(KeepstepError):
            keepstep.load_dcp({"model": dict(nn.Linear(20, 20).state_dict())}, save)


def test_a_value_said_to_be_transformed_is_not_unpickled(tmp_path: Path) -> None:
    """Torch's own reader would: it unpickles values without restriction."""
    folder, marker = tmp_path / "dcp", tmp_path / "marker"
    dcp.save({"w": torch.ones(3), "n": 3}, checkpoint_id=folder, no_dist=True)
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    evil = folder / "evil"
    torch.save(Evil(marker), evil)
    for index, place in metadata.storage_data.items():
        if index.fqn == "n":
            place.relative_path, place.offset, place.length = "evil", 0, evil.stat().st_size
            place.transform_descriptors = ["stream.zstd"]
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(UnsupportedStateError, match="transformed"):
        keepstep.load_dcp({"n": 0}, folder)
    assert not marker.exists()


def test_a_pickle_cannot_set_attributes_of_torch_s_classes() -> None:
    from torch.distributed.checkpoint.metadata import MetadataIndex

    name = b"ctorch.distributed.checkpoint.metadata\nMetadataIndex\n"
    with pytest.raises(DamagedCheckpointError):
        parse_metadata(b"\x80\x04" + name + b"N}\x8c\x05ownedK\x01s\x86b.", Path("x"))
    assert not hasattr(MetadataIndex, "owned")
