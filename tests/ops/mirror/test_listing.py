import os
import uuid
from pathlib import Path

import pytest

from keepstep.config.address import Address, parse_address
from keepstep.errors import CouldNotLookError
from keepstep.ops.listing import list_folder
from keepstep.ops.mirror.listing import list_stored
from tests.rig.faulty_proxy import FaultyProxy
from tests.rig.folders import make_checkpoint
from tests.rig.stored import store_checkpoints


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in (5, 10, 15):
        make_checkpoint(tmp_path / "run", step)
    return tmp_path / "run"


def at(path: Path) -> Address:
    return parse_address(f"file://{path}")


def test_a_listing_is_as_that_of_a_folder(run: Path) -> None:
    os.truncate(run / "save-10" / "run.json", 0)
    (run / "save-20").mkdir()
    (run / "save-20" / "__0_0.distcp").write_text("under way")
    (run / "notes").write_text("")
    os.utime(run / "save-5" / "manifest.json", (1_800_000_000, 1_800_000_000))
    mine, theirs = list_folder(run), list_stored(at(run))
    assert [(c.step, c.condition, c.size, c.world_size, c.attempt, c.problem) for c in mine.checkpoints] == [
        (c.step, c.condition, c.size, c.world_size, c.attempt, c.problem) for c in theirs.checkpoints
    ]
    assert theirs.checkpoints[0].path == f"file://{run}/save-5"
    assert theirs.checkpoints[0].created_at == "2027-01-15T08:00:00Z"
    assert theirs.checkpoints[3].created_at is None
    assert theirs.foreign == ("notes",)
    assert list_stored(at(run.parent)).runs == ("run",)


def test_nothing_there_is_told_from_a_store_that_does_not_answer(tmp_path: Path) -> None:
    assert list_stored(at(tmp_path / "nowhere")).checkpoints == ()
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(CouldNotLookError, match="cannot look"):
        list_stored(at(tmp_path / "file"))


def test_a_checkpoint_is_no_run(run: Path) -> None:
    with pytest.raises(CouldNotLookError, match="keepstep show"):
        list_stored(at(run / "save-5"))


def test_a_store_that_refuses_is_not_empty(proxy: FaultyProxy, s3: str) -> None:
    proxy.manners.answer = 403
    with pytest.raises(CouldNotLookError, match="cannot look for checkpoints in s3://"):
        list_stored(parse_address(f"{s3}/x"))


def test_a_thousand_checkpoints_take_one_call_for_a_thousand_names(proxy: FaultyProxy, s3: str) -> None:
    address = parse_address(f"{s3}/{uuid.uuid4().hex}")
    store_checkpoints(address, 1000)
    proxy.manners.requests.clear()
    listed = list_stored(address)
    assert [(c.step, c.condition) for c in listed.checkpoints] == [(step, "complete") for step in range(1, 1001)]
    requests = [path for _, path in proxy.manners.requests]
    pages = [path for path in requests if "list-type=2" in path]
    assert 0 < len(pages) <= 3 * 5
    assert [path for path in requests if path not in pages and "/manifest.json" not in path] == []
