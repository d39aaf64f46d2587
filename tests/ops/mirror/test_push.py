import time
import uuid
from pathlib import Path

import pytest

from keepstep.config.address import Address, parse_address
from keepstep.ops import diff as diffing
from keepstep.ops.mirror.listing import list_stored
from keepstep.ops.mirror.push import push
from keepstep.ops.mirror.showing import show_stored
from keepstep.ops.mirror.verifying import verify_address
from tests.rig.folders import make_checkpoint


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in (5, 10, 15):
        make_checkpoint(tmp_path / "run", step)
    return tmp_path / "run"


def at(path: Path) -> Address:
    return parse_address(f"file://{path}")


def test_a_real_object_store_is_written_and_read(run: Path, s3: str) -> None:
    top = parse_address(f"{s3}/{uuid.uuid4().hex}")
    before = time.time()
    push(run, top)
    address = top.joined("run")
    listed = list_stored(address)
    assert [(c.step, c.condition) for c in listed.checkpoints] == [(5, "complete"), (10, "complete"), (15, "complete")]
    assert (listed.checkpoints[0].created_at or "")[:4] == time.strftime("%Y", time.gmtime(before))
    assert list_stored(top).runs == ("run",)
    assert show_stored(address.joined("save-5")).parameters == 10_000
    assert [v.condition for v in verify_address(address)] == ["complete"] * 3
    assert diffing.diff(str(address.joined("save-5")), str(run / "save-5")).same
    assert list_stored(top.joined("nothing")).checkpoints == ()
