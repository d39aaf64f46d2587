"""What `keepstep doctor` says of mounted drives with odd manners."""

import os
from pathlib import Path

import pytest

from keepstep.ops.doctor import examine
from keepstep.plan.doctor import Level
from keepstep.plan.doctor_facts import Wishes
from tests.rig.oddfs import Manners, mounted, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can be mounted")

SMALL = Wishes(amount=2**20)


FINE, WARNING, UNFIT = Level.FINE, Level.WARNING, Level.UNFIT


@pytest.mark.parametrize(
    ("manners", "told"),
    [
        (Manners(), [("rename of a folder", FINE, "one step")]),
        (
            Manners(direct=False, links=False, exchange=False, folder_sync=False, late_names=0.3, skew=300),
            [
                ("exchange of two folders", FINE, "not here"),
                ("hard links", FINE, "not here (Operation not permitted)"),
                ("O_DIRECT", FINE, "not here (Invalid argument)"),
                ("sync of a folder", WARNING, "fsync of a folder fails: Invalid argument"),
                ("another process sees a new file", FINE, "after "),
                ("clock", WARNING, "5 min ahead of this machine's"),
            ],
        ),
        (
            Manners(rename_copies=0.03, skew=-300),
            [("rename of a folder", WARNING, "is not one step"), ("clock", WARNING, "5 min behind this machine's")],
        ),
        (Manners(folder_rename=False), [("rename of a folder", UNFIT, "fails: Invalid cross-device link")]),
        (Manners(late_content=0.3), [("write", UNFIT, "cannot be written: other bytes were read than were written")]),
    ],
)
def test_manners_are_named(tmp_path: Path, manners: Manners, told: list[tuple[str, Level, str]]) -> None:
    with mounted(tmp_path, manners) as drive:
        found = examine(drive, SMALL)
    by_topic = {finding.topic: finding for finding in found.findings}
    assert [(topic, by_topic[topic].level) for topic, _, _ in told] == [(topic, level) for topic, level, _ in told]
    for topic, _, what in told:
        assert by_topic[topic].what.startswith(what)
    assert found.fit == all(level is not UNFIT for _, level, _ in told)
    assert os.listdir(tmp_path / "server") == []
