import shutil
from pathlib import Path
from typing import Any

import pytest

from keepstep.errors import RunInUseError
from keepstep.ops.mirror.fence import Fence
from keepstep.ops.mirror.uploader import Uploader, Wishes
from keepstep.plan.mirror import Copy
from keepstep.storage.attempt_marks import attempts_in
from keepstep.storage.leases import held_steps, pin
from keepstep.storage.stored import survey_store
from keepstep.storage.stores.folder import FolderStore
from keepstep.storage.stores.meter import Meter
from tests.rig.folders import make_checkpoint


class Rig:
    """A run's folder, a mirror, and what the uploader tells."""

    def __init__(self, base: Path) -> None:
        self.run, self.store = base / "run", FolderStore(base / "mirror")
        self.run.mkdir()
        self.events: list[dict[str, Any]] = []

    def uploader(self, attempt: int = 1, holder: str = "a job", **wishes: Any) -> Uploader:
        fence = Fence(self.store, "exp", attempt, holder)
        found = Uploader(self.run, self.store, "exp", Wishes(**wishes), fence, tell=self.events.append)
        found.begin()
        return found

    def work(self, uploader: Uploader) -> list[int]:
        """Upload until nothing is due. Returns the steps, in that order."""
        done = []
        while due := uploader.due():
            uploader.upload(due[0])
            done.append(due[0].step)
            assert len(done) < 50
        return done

    def stored(self) -> list[int]:
        return [one.found.step for one in survey_store(self.store, "exp").complete]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_what_is_committed_is_uploaded_and_is_whole_there(rig: Rig) -> None:
    for step in (5, 10):
        make_checkpoint(rig.run, step)
    uploader = rig.uploader()

    assert rig.work(uploader) == [10, 5]
    assert rig.stored() == [5, 10]
    for file in (rig.run / "save-10").iterdir():
        assert rig.store.read(f"exp/save-10/{file.name}", 10**6) == file.read_bytes()
    assert [event["step"] for event in rig.events if event["event"] == "mirrored"] == [10, 5]


def test_what_is_there_already_is_not_sent_again(rig: Rig) -> None:
    make_checkpoint(rig.run, 5)
    rig.work(rig.uploader())
    again = rig.uploader(attempt=2)

    assert again.due() == ()
    assert again.mirrored == {Copy(5, 1)}


def test_an_upload_that_was_cut_off_is_not_whole_and_goes_on(rig: Rig) -> None:
    make_checkpoint(rig.run, 5)
    left: list[int] = [1500]

    def cut(count: int) -> None:
        left[0] -= count
        if left[0] < 0:
            raise ConnectionError("cut")

    uploader = rig.uploader()
    uploader.meter = lambda: Meter(on_bytes=cut)
    with pytest.raises(ConnectionError):
        uploader.upload(Copy(5, 1))
    assert rig.stored() == []

    assert rig.work(rig.uploader()) == [5]
    assert rig.stored() == [5]


@pytest.mark.parametrize("same_process", [True, False])
def test_what_an_upload_left_that_will_not_go_on_is_cleared_away(rig: Rig, same_process: bool) -> None:
    path = make_checkpoint(rig.run, 5)
    uploader = rig.uploader()
    left: list[int] = [1500]

    def cut(count: int) -> None:
        left[0] -= count
        if left[0] < 0:
            raise ConnectionError("cut")

    uploader.meter = lambda: Meter(on_bytes=cut)
    with pytest.raises(ConnectionError):
        uploader.upload(Copy(5, 1))
    shutil.rmtree(path)
    make_checkpoint(rig.run, 10)
    assert rig.store.list("exp/save-5")
    if not same_process:
        uploader = rig.uploader()
    uploader.meter = Meter

    assert rig.work(uploader) == [10]
    assert not rig.store.list("exp/save-5")


def test_a_damaged_checkpoint_is_never_uploaded_and_told_of_once(rig: Rig) -> None:
    path = make_checkpoint(rig.run, 5)
    shard = path / "__0_0.distcp"
    data = bytearray(shard.read_bytes())
    data[10] ^= 1
    shard.write_bytes(data)
    uploader = rig.uploader()

    assert rig.work(uploader) == [5]
    assert rig.stored() == []
    assert [event["event"] for event in rig.events][-1] == "given up"
    assert "not as it was written" in rig.events[-1]["problem"]


def test_a_checkpoint_that_goes_before_its_turn_is_given_up(rig: Rig) -> None:
    path = make_checkpoint(rig.run, 5)
    uploader = rig.uploader()
    due = uploader.due()
    shutil.rmtree(path)

    uploader.upload(due[0])

    assert rig.events[-1]["event"] == "given up"
    assert uploader.due() == ()


def test_a_checkpoint_is_held_while_it_is_uploaded(rig: Rig) -> None:
    make_checkpoint(rig.run, 5)
    seen = []
    uploader = rig.uploader()
    uploader.meter = lambda: Meter(on_bytes=lambda count: seen.append(held_steps(rig.run)))

    uploader.upload(Copy(5, 1))

    assert set(seen) == {frozenset({5})}
    assert held_steps(rig.run) == frozenset()


def test_retention_there_keeps_the_newest_and_what_is_pinned(rig: Rig) -> None:
    uploader = rig.uploader(num_to_keep=2)
    pin(rig.run, 5)
    for step in (5, 10, 15, 20):
        make_checkpoint(rig.run, step)
        rig.work(uploader)

    assert rig.stored() == [5, 15, 20]
    assert not rig.store.list("exp/save-10")


def test_only_what_is_far_enough_apart_goes_there_and_what_is_forced(rig: Rig) -> None:
    uploader = rig.uploader(period_steps=10)
    for step in (5, 10, 15, 18):
        make_checkpoint(rig.run, step)
    uploader.forced.add(18)

    assert rig.work(uploader) == [18, 15, 5]


def test_a_step_that_another_attempt_saves_again_takes_the_place_of_the_first(rig: Rig) -> None:
    make_checkpoint(rig.run, 10, attempt=1)
    rig.work(rig.uploader())
    shutil.rmtree(rig.run / "save-10")
    make_checkpoint(rig.run, 10, attempt=2, size=50_000)

    assert rig.work(rig.uploader(attempt=2)) == [10]
    assert survey_store(rig.store, "exp").complete[0].manifest is not None
    assert survey_store(rig.store, "exp").complete[0].manifest.attempt == 2  # type: ignore[union-attr]


def test_the_later_attempt_has_the_mirror(rig: Rig) -> None:
    make_checkpoint(rig.run, 5)
    first = rig.uploader(attempt=1, holder="process 1 on old-machine")
    second = rig.uploader(attempt=2, holder="process 9 on new-machine")

    with pytest.raises(RunInUseError, match="process 9 on new-machine"):
        first.upload(Copy(5, 1))
    assert rig.stored() == []
    assert rig.work(second) == [5]
    with pytest.raises(RunInUseError):
        rig.uploader(attempt=1, holder="process 1 on old-machine")


def test_of_two_jobs_with_one_number_the_first_has_it(rig: Rig) -> None:
    rig.uploader(attempt=3, holder="process 1")

    with pytest.raises(RunInUseError, match="process 1"):
        rig.uploader(attempt=3, holder="process 2")
    rig.uploader(attempt=3, holder="process 1")


def test_a_fence_leaves_one_note(rig: Rig) -> None:
    for attempt in (1, 2, 3):
        rig.uploader(attempt=attempt)

    assert survey_store(rig.store, "exp").notes == ("attempts/3/holder.json",)
    assert attempts_in(["attempts/3/holder.json", "attempts/x/y", "attempts/12", "other/5"]) == [3, 12]
