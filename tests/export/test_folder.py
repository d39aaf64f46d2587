"""Whatever moment an export dies at, what lies there is nothing, the model before, or the new one."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from keepstep.errors import ConfigError
from keepstep.export.folder import check_target, read_export
from keepstep.export.weights import export_weights, is_exported
from tests.rig import forks

SMALL = 200  # bytes of a file: two of them


def loaded(folder: Path) -> dict[str, torch.Tensor] | None:
    """What a reader of Hugging Face's layout finds."""
    if (folder / "model.safetensors").is_file():
        return load_file(folder / "model.safetensors")
    if not (folder / "model.safetensors.index.json").is_file():
        return None
    places = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    files = {name: load_file(folder / name) for name in set(places.values())}
    return {key: files[name][key] for key, name in places.items()}


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(value, found[key]) for key, value in expected.items())


def counting(tick: Callable[[], None], work: Callable[[], Any]) -> None:
    """Run work, with a tick before each call that changes the disk."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((os, "write"), (os, "fsync"), (Path, "rename"), (Path, "unlink"), (Path, "mkdir")):
            call = getattr(owner, name)

            def ticking(*args: Any, call: Any = call, **more: Any) -> Any:
                tick()
                return call(*args, **more)

            patch.setattr(owner, name, ticking)
        work()


def kill_at(number: int, work: Callable[[], Any]) -> bool:
    """Run work in a process that dies before such a call. Returns whether it did."""

    def dying() -> None:
        left = [number]

        def tick() -> None:
            left[0] -= 1
            if left[0] < 0:
                os._exit(9)

        counting(tick, work)

    return forks.run(dying)[0].status == 9


@pytest.mark.parametrize("every", [5, pytest.param(2, marks=pytest.mark.crash)])
@pytest.mark.parametrize("before", [None, 10**9, SMALL])
@pytest.mark.parametrize("after", [10**9, SMALL])
def test_killed_anywhere(
    tied: tuple[Path, nn.Module], tmp_path: Path, before: int | None, after: int, every: int
) -> None:
    new = tied[0]
    old, out = new.with_name("save-5"), tmp_path / "out"
    export_weights(new, tmp_path / "new")
    export_weights(old, tmp_path / "old")
    models = [loaded(tmp_path / "new"), loaded(tmp_path / "old")]
    calls = [0]
    counting(
        lambda: calls.__setitem__(0, calls[0] + 1), lambda: export_weights(new, tmp_path / "x", max_shard_size=after)
    )
    assert calls[0] > 8
    expected = sorted(os.listdir(tmp_path / "x"))
    for number in range(int(before is None), calls[0] + 14, every):
        if before is not None:
            export_weights(old, out, max_shard_size=before)
        died = kill_at(number, lambda: export_weights(new, out, max_shard_size=after))
        found = loaded(out)
        if found is not None:
            assert same(found, models[0] or {}) or (before is not None and same(found, models[1] or {}))
        if is_exported(new, out):
            assert found is not None
            assert same(found, models[0] or {})
        export_weights(new, out, max_shard_size=after)
        assert is_exported(new, out)
        assert sorted(os.listdir(out)) == expected
        assert not list(tmp_path.glob(".*"))
        if not died:
            break
    assert not died


def test_no_file_of_an_earlier_export_remains(tied: tuple[Path, nn.Module], tmp_path: Path) -> None:
    for most in (SMALL, 10**9, 60, SMALL, 10**9):
        export_weights(tied[0], tmp_path / "out", max_shard_size=most)
        names = set(os.listdir(tmp_path / "out"))
        assert names == {*read_export(tmp_path / "out")["files"], "keepstep.json"}
    assert names == {"model.safetensors", "keepstep.json"}


def test_a_record_of_the_first_form_is_known(tied: tuple[Path, nn.Module], tmp_path: Path) -> None:
    export_weights(tied[0], tmp_path / "out")
    record = read_export(tmp_path / "out")
    (tmp_path / "out" / "keepstep.json").write_text(json.dumps({name: record[name] for name in ("step", "checkpoint")}))
    assert is_exported(tied[0], tmp_path / "out")
    assert not is_exported(tied[0].with_name("save-5"), tmp_path / "out")
    export_weights(tied[0], tmp_path / "out", max_shard_size=SMALL)
    assert not (tmp_path / "out" / "model.safetensors").exists()
    (tmp_path / "out" / "keepstep.json").write_text("[]")
    assert not is_exported(tied[0], tmp_path / "out")


def test_a_record_cannot_have_other_files_removed(tied: tuple[Path, nn.Module], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.safetensors").write_text("mine")
    (tmp_path / "precious").write_text("mine")
    record = {"format": 2, "files": ["../precious", "mine.safetensors", 7, str(tmp_path / "precious")]}
    (tmp_path / "out" / "keepstep.json").write_text(json.dumps(record))
    export_weights(tied[0], tmp_path / "out")
    assert (tmp_path / "precious").read_text() == (tmp_path / "out" / "mine.safetensors").read_text() == "mine"


def test_an_export_that_lacks_a_file_is_none(tied: tuple[Path, nn.Module], tmp_path: Path) -> None:
    export_weights(tied[0], tmp_path / "out", max_shard_size=SMALL)
    assert is_exported(tied[0], tmp_path / "out")
    shard = next((tmp_path / "out").glob("model-*"))
    data = shard.read_bytes()
    shard.write_bytes(data[:-1])
    assert not is_exported(tied[0], tmp_path / "out")
    shard.unlink()
    assert not is_exported(tied[0], tmp_path / "out")


def test_what_a_target_may_be(tmp_path: Path) -> None:
    check_target(tmp_path / "new")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="choose another folder"):
        check_target(tmp_path / "file")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".model.safetensors.keepstep-tmp").write_text("cut")
    check_target(tmp_path / "out")
