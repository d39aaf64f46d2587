"""What measured facts mean for a folder that is to hold checkpoints."""

from dataclasses import replace

import pytest

from keepstep.plan.doctor import Finding, Level, is_fit, judge_folder
from keepstep.plan.doctor_facts import Facts, Seen, Shared, Speed, Tried, Wishes
from keepstep.plan.durability import Durability, Home

GB = 10**9
GOOD = Facts(
    "/data",
    "nfs4",
    "server:/export",
    Durability(Home.REMOTE),
    written=Tried(),
    synced=Tried("", 0.002),
    synced_folder=Tried("", 0.001),
    seen=Seen(0.0),
    renamed=Tried("", 0.001),
    seen_renamed=Seen(0.0),
    exchanged=Tried(),
    linked=Tried(),
    direct=Tried(),
    skew=-0.2,
    free=100 * GB,
    checkpoints=2,
    checkpoint_size=10 * GB,
    speed=Speed(GB, 2.0, 1.0),
)


def bad(facts: Facts, wishes: Wishes | None = None) -> list[tuple[str, Level]]:
    found = judge_folder(facts, wishes or Wishes())
    assert all(bool(f.why) and bool(f.to_do) for f in found if f.level is not Level.FINE)
    assert is_fit(found) == all(f.level is not Level.UNFIT for f in found)
    return [(f.topic, f.level) for f in found if f.level is not Level.FINE]


def finding(topic: str, facts: Facts, wishes: Wishes | None = None) -> Finding:
    (found,) = [f for f in judge_folder(facts, wishes or Wishes()) if f.topic == topic]
    return found


def test_a_good_folder() -> None:
    assert bad(GOOD) == []
    assert [f"{f.topic}: {f.what}" for f in judge_folder(GOOD, Wishes(grace=30.0))] == [
        "file system: nfs4 (server:/export); no sign that it goes with the machine",
        "write: can be written, and reads back what was written",
        "sync of a file: 2.0 ms",
        "sync of a folder: 1.0 ms",
        "another process sees a new file: at once",
        "rename of a folder: one step, 1.0 ms",
        "exchange of two folders: works",
        "hard links: works",
        "O_DIRECT: works",
        "clock: 0.2 s apart from this machine's",
        "space: 100.0 GB free, 10.0 GB needed (1 more of 10.0 GB)",
        "speed: writes 500.0 MB/s, reads 1.0 GB/s (1.0 GB measured)",
        "time of a save: about 20.0 s for 10.0 GB from one process, of 30.0 s grace",
    ]


@pytest.mark.parametrize(
    ("change", "topic", "level"),
    [
        ({"durability": Durability(Home.MEMORY, "tmpfs (memory)")}, "file system", Level.WARNING),
        ({"synced": Tried("Input/output error")}, "sync of a file", Level.UNFIT),
        ({"synced": Tried("", 1.5)}, "sync of a file", Level.WARNING),
        ({"synced_folder": Tried("Invalid argument")}, "sync of a folder", Level.WARNING),
        ({"seen": Seen(None)}, "another process sees a new file", Level.UNFIT),
        ({"seen": Seen(4.0)}, "another process sees a new file", Level.WARNING),
        ({"renamed": Tried("Invalid cross-device link"), "seen_renamed": None}, "rename of a folder", Level.UNFIT),
        ({"seen_renamed": Seen(None)}, "rename of a folder", Level.UNFIT),
        ({"seen_renamed": Seen(0.1, torn=True)}, "rename of a folder", Level.WARNING),
        ({"rename_grows": (0.01, 0.08)}, "rename of a folder", Level.WARNING),
        ({"renamed": Tried("", 2.0)}, "rename of a folder", Level.WARNING),
        ({"skew": 300.0}, "clock", Level.WARNING),
        ({"skew": -61.0}, "clock", Level.WARNING),
        ({"speed": Speed(GB, 2.0, 1.0, differs=True)}, "read back", Level.UNFIT),
        ({"free": 9 * GB}, "space", Level.UNFIT),
        ({"shared": Shared(4, (1, 3), 30.0)}, "ranks", Level.UNFIT),
    ],
)
def test_one_thing_that_is_not_as_it_should_be(change: dict[str, object], topic: str, level: Level) -> None:
    assert bad(replace(GOOD, **change)) == [(topic, level)]  # type: ignore[arg-type]


def test_what_cannot_be_written_is_not_judged_further() -> None:
    facts = Facts("/data", "ext4", "/dev/sda", written=Tried("Read-only file system"))
    assert bad(facts) == [("write", Level.UNFIT)]


def test_what_there_is_a_fallback_for_is_fine_and_named() -> None:
    facts = replace(GOOD, exchanged=Tried("no"), linked=Tried("no"), direct=Tried("no"), seen=Seen(2.0))
    assert bad(facts) == []
    assert finding("hard links", facts).what.startswith("not here (no); locks and notes are made by exclusive")
    assert finding("another process sees a new file", facts).what == "after 2.0 s"


def test_room_for_one_more_than_is_kept() -> None:
    empty = replace(GOOD, checkpoints=0, checkpoint_size=None, free=30 * GB)
    assert finding("space", empty).what == "30.0 GB free; give --size to hear whether that is enough"
    assert bad(empty, Wishes(keep=2, size=10 * GB)) == []
    assert bad(empty, Wishes(keep=2, size=10 * GB + 1)) == [("space", Level.UNFIT)]
    assert bad(empty, Wishes(keep=3, size=10 * GB)) == [("space", Level.UNFIT)]
    # What is there has its room already; one more is needed however many there are.
    assert bad(replace(GOOD, checkpoints=9, free=10 * GB), Wishes(keep=2)) == []
    assert bad(replace(GOOD, free=None), Wishes(keep=9)) == []


def test_a_save_that_takes_longer_than_the_grace() -> None:
    assert bad(GOOD, Wishes(grace=20.0)) == []
    assert bad(GOOD, Wishes(grace=19.9)) == [("time of a save", Level.WARNING)]


def test_a_rename_that_takes_long_however_much_there_is_is_no_copy() -> None:
    assert bad(replace(GOOD, rename_grows=(0.3, 0.31))) == []
    assert bad(replace(GOOD, rename_grows=(0.00001, 0.001))) == []
    found = finding("rename of a folder", replace(GOOD, rename_grows=(0.03, 0.24)))
    assert found.what.startswith("is not one step (30.0 ms with one file in it, 240.0 ms with eight)")


def test_ranks_that_share() -> None:
    assert finding("ranks", replace(GOOD, shared=Shared(4))).what == "all 4 see each other's files"
