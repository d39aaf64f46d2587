"""What must never happen between a run and its mirror: work lost, another line taken up, another's things touched."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import keepstep
from keepstep.config.address import parse_address
from keepstep.errors import ConfigError, CouldNotLookError, DamagedCheckpointError
from keepstep.plan.manifest import from_text, to_text
from keepstep.storage.digest import digest_of_bytes
from keepstep.storage.stores.opening import open_store
from tests.checkpoint.mirrors.test_mirrored_runs import Rig, rig, spoil, stop_at
from tests.rig import tiny

__all__ = ["rig"]


def steps(run: Path) -> list[str]:
    return sorted(path.name for path in run.glob("save-*"))


def mirror(rig: Rig, **more: Any) -> dict[str, Any]:
    return {"address": f"file://{rig.mirror}", **more}


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("require", [True, False])
def test_the_end_of_a_job_deletes_nothing_that_waits(rig: Rig, require: bool) -> None:
    def break_it(step: int) -> None:
        if step == 1:
            rig.mirror.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(rig.mirror)
            rig.mirror.write_text("no folder")

    tiny.train(
        replace(rig.job, total=20, keep=1, on_step=break_it, mirror=mirror(rig, require=require, wait_seconds=1))
    )

    kept = ["save-10", "save-15", "save-20", "save-5"] if require else ["save-10", "save-15", "save-20"]
    assert steps(rig.run) == kept


@pytest.mark.parametrize("how", ["bytes", "size"])
def test_only_damaged_ones_on_a_mirror_are_no_fresh_start(rig: Rig, how: str) -> None:
    rig.until(5)
    shard = rig.mirror / "tiny" / "save-5" / "__0_0.distcp"
    spoil(shard) if how == "bytes" else shard.write_bytes(b"short")
    rig.wipe()
    before = tree(rig.mirror)

    with pytest.raises(DamagedCheckpointError, match="nothing good is left"):
        rig.train()
    assert tree(rig.mirror) == before


def test_one_of_a_newer_version_is_no_fresh_start_and_is_not_replaced(rig: Rig) -> None:
    rig.until(5)
    manifest = rig.mirror / "tiny" / "save-5" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 99'))
    rig.wipe()
    before = manifest.read_bytes()

    with pytest.raises(CouldNotLookError, match="newer keepstep"):
        rig.train()
    assert manifest.read_bytes() == before


def test_a_repair_takes_no_other_line(rig: Rig) -> None:
    rig.until(15)
    rig.job = replace(rig.job, keep=None, mirror=mirror(rig, wait_seconds=0, max_mib_per_second=0.001))
    with pytest.raises(keepstep.StopRequested):
        tiny.train(replace(rig.job, total=20, resume_step=10, period=1, on_step=stop_at(13)))
    assert (rig.run / "save-12").exists()
    spoil(rig.run / "save-12" / "__0_0.distcp")
    shutil.copytree(rig.mirror / "tiny" / "save-15", rig.mirror / "tiny" / "save-12")
    manifest = rig.mirror / "tiny" / "save-12" / "manifest.json"
    found = json.loads(manifest.read_text())
    old = from_text(json.dumps(found, indent=1), digest_of_bytes)
    manifest.write_text(to_text(replace(old, step=12), digest_of_bytes))

    # 11 is of the same attempt as 12, and whole.
    assert rig.train()[0]["start"] == 11


def test_where_damage_stops_a_job_no_older_one_is_taken_from_a_mirror(rig: Rig) -> None:
    rig.until(15)
    spoil(rig.mirror / "tiny" / "save-15" / "__0_0.distcp")
    rig.wipe()

    settings = keepstep.CheckpointingConfig(
        save_dir=rig.job.save_dir, period_steps=5, on_damage="stop", mirror=mirror(rig)
    )
    parts = tiny.build()
    with (
        keepstep.Checkpointer(settings, keepstep.JobState(**parts), run_name="tiny", total_steps=20) as checkpointer,
        pytest.raises(DamagedCheckpointError, match="on_damage: fall_back"),
    ):
        checkpointer.resume()


def test_a_line_that_was_left_is_not_taken_up_by_ranges(rig: Rig) -> None:
    rig.until(15)
    other = rig.base / "other"
    shutil.copytree(rig.base / "a", other)
    # Another machine goes on from 10 and saves 12; the copy of the folder here still has 15.
    rig.until(11, resume_step=10, period=1)
    spoil(rig.mirror / "tiny" / "save-12" / "__0_0.distcp")
    shutil.rmtree(rig.base / "a")
    other.rename(rig.base / "a")
    (rig.mirror / "tiny" / "save-11" / "manifest.json").unlink()

    started = tiny.train(replace(rig.job, total=20, mirror=mirror(rig, fetch="ranges")))

    assert started["start"] == 10


def test_a_mirror_that_is_the_runs_own_folder_is_refused(rig: Rig) -> None:
    for address in (rig.job.save_dir, f"{rig.job.save_dir}/tiny/x"):
        with pytest.raises(ConfigError, match="lie in one another"):
            tiny.train(replace(rig.job, mirror={"address": f"file://{address}"}))


def test_never_asked_a_mirror_still_gets_what_is_saved(rig: Rig) -> None:
    rig.until(10)
    rig.wipe()
    tiny.train(replace(rig.job, total=20, mirror=mirror(rig, fetch="never")))

    assert rig.stored()[-1] == 20


def test_another_programs_folder_keeps_its_name_and_content(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("save-3", "save-10"):
        place = rig.mirror / "tiny" / name
        place.mkdir(parents=True)
        (place / "manifest.json").write_text('{"name": "something else"}')
        (place / "precious").write_text("of somebody else")
    before = tree(rig.mirror)

    tiny.train(replace(rig.job, total=20))

    after = tree(rig.mirror)
    assert {name: after[name] for name in before} == before
    assert rig.stored()[-2:] == [15, 20]
    assert "save-10 is not replaced" in caplog.text


@pytest.mark.parametrize("name", ["a#1", "a%412", "a b"])
def test_odd_names_lead_to_one_place_only(s3: str, name: str) -> None:
    store = open_store(parse_address(f"{s3}/odd/{name}"))
    store.write("x", name.encode())

    assert [one.name for one in store.list()] == ["x"]
    assert open_store(parse_address(f"{s3}/odd")).read(f"{name}/x", 100) == name.encode()


@pytest.mark.parametrize(
    "given",
    [
        "s3://key:SECRET@bucket/x",
        "s3://bucket/x?sig=SECRET",
        {"address": "s3://key:SECRET@bucket/x", "fetch": "nothing"},
        {"adress": "s3://bucket/x?sig=SECRET"},
        [["s3://key:SECRET@bucket/x"]],
    ],
)
def test_what_is_secret_in_an_address_is_in_no_error(given: Any) -> None:
    for more in ({"period_steps": 5}, {}):
        with pytest.raises(ValidationError) as caught:
            keepstep.CheckpointingConfig(save_dir="runs", mirror=given, **more)
        assert "SECRET" not in str(caught.value)
