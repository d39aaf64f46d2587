"""One at a time, and the next one at once when a holder dies."""

import json
import os
import secrets
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from keepstep.storage.scoring import claims
from keepstep.storage.scoring.claims import FOLDER, claimed

KEY = ("0123456789abcdef", "task")

HOLDER = """
import sys, time
from pathlib import Path
from keepstep.storage.scoring.claims import claimed
with claimed(Path(sys.argv[1]), ("0123456789abcdef", "task")) as claim:
    print(claim is not None, flush=True)
    time.sleep(60)
"""


def files(folder: Path) -> list[str]:
    return sorted(os.listdir(folder / FOLDER))


def test_one_at_a_time_and_nothing_is_left(tmp_path: Path) -> None:
    with claimed(tmp_path, KEY) as first:
        assert first is not None
        assert (first.deaths, first.is_held) == (0, True)
        with claimed(tmp_path, KEY) as second:
            assert second is None
        with claimed(tmp_path, (KEY[0], "canary")) as other:
            assert other is not None
        assert len(files(tmp_path)) == 1
    assert files(tmp_path) == []
    with claimed(tmp_path, KEY) as again:
        assert again is not None


def test_the_claim_of_a_killed_process_is_free_at_once_and_counts(tmp_path: Path) -> None:
    for _ in range(2):
        holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        with claimed(tmp_path, KEY) as none:
            assert none is None
        holder.kill()
        holder.communicate()
        assert len(files(tmp_path)) == 1
    with claimed(tmp_path, KEY) as claim:
        assert claim is not None
        assert claim.deaths == 2
    assert files(tmp_path) == []


def stranger(folder: Path, number: int = 1, *, age: float) -> Path:
    """A claim of a process on another machine."""
    with claimed(folder, KEY):
        (name,) = files(folder)
    path = folder / FOLDER / f"{name.partition('.')[0]}.{number}"
    path.write_text(json.dumps({"host": "far", "pid": 1, "boot": "b", "namespace": "n", "started": "1"}))
    past = time.time() - age
    os.utime(path, (past, past))
    return path


@pytest.mark.parametrize(("age", "free"), [(1.0, False), (100.0, True), (-1e6, False)])
def test_a_claim_from_another_machine_ends_by_silence(tmp_path: Path, age: float, free: bool) -> None:
    stranger(tmp_path, 3, age=age)
    with claimed(tmp_path, KEY, lease=60.0) as claim:
        assert (claim is not None) == free
        if claim is not None:
            assert claim.deaths == 3


def test_a_claim_that_cannot_be_read_ends_by_silence_too(tmp_path: Path) -> None:
    stranger(tmp_path, age=100.0).write_text("")
    with claimed(tmp_path, KEY, lease=60.0) as claim:
        assert claim is None  # it was touched just now


def test_a_holder_that_slept_knows_that_it_was_replaced(tmp_path: Path) -> None:
    with claimed(tmp_path, KEY) as claim:
        assert claim is not None
        (name,) = files(tmp_path)
        (tmp_path / FOLDER / f"{name.partition('.')[0]}.2").write_text("{}")
        assert not claim.is_held
    assert files(tmp_path) == [f"{name.partition('.')[0]}.2"]


def test_numbers_that_began_anew_are_not_taken_for_ones_own(tmp_path: Path) -> None:
    with claimed(tmp_path, KEY) as asleep:
        assert asleep is not None
        path = tmp_path / FOLDER / files(tmp_path)[0]
        path.unlink()  # another one took over, was done, and gave it up
        with claimed(tmp_path, KEY) as other:
            assert other is not None
            assert path.exists()
            assert (asleep.is_held, other.is_held) == (False, True)
            asleep.release()
            assert other.is_held


def test_a_holder_gives_signs_of_life(tmp_path: Path) -> None:
    with claimed(tmp_path, KEY, beat=0.01) as claim:
        assert claim is not None
        path = tmp_path / FOLDER / files(tmp_path)[0]
        os.utime(path, (1.0, 1.0))
        until = time.monotonic() + 10
        while path.stat().st_mtime < 2 and time.monotonic() < until:
            time.sleep(0.01)
        assert path.stat().st_mtime > 2


def test_of_many_who_find_a_dead_one_one_wins(tmp_path: Path) -> None:
    key = stranger(tmp_path, age=100.0).stem
    barrier, inside, most = threading.Barrier(8), [0], [0]
    lock = threading.Lock()

    def work() -> None:
        barrier.wait()
        number = claims._take(tmp_path, key, 60.0, secrets.token_hex(8))
        if number is not None:
            with lock:
                inside[0] += 1
                most.append(number)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert inside[0] == 1
    assert max(most) == 2
