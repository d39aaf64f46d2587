"""Rows are added whole, and once."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from keepstep.errors import CouldNotLookError
from keepstep.plan.scores import FAILED, FILE, RETRY, SCORED, Score
from keepstep.storage.scoring.scores import add_score, read_scores, unreadable_lines


def row(step: int, outcome: str = SCORED, **more: Any) -> Score:
    return Score(step, f"d{step}", "task", outcome, **more)


def test_a_checkpoint_is_scored_once_and_tries_may_come_before(tmp_path: Path) -> None:
    assert add_score(tmp_path, row(1, RETRY, tries=1))
    assert add_score(tmp_path, row(1, RETRY, tries=2))
    assert add_score(tmp_path, row(1, metrics={"a": 1.0}))
    before = (tmp_path / FILE).read_bytes()
    assert not add_score(tmp_path, row(1, metrics={"a": 2.0}))
    assert not add_score(tmp_path, row(1, FAILED))
    assert (tmp_path / FILE).read_bytes() == before
    assert [one.outcome for one in read_scores(tmp_path)] == [RETRY, RETRY, SCORED]


def test_without_a_file_there_are_no_scores(tmp_path: Path) -> None:
    assert read_scores(tmp_path) == ()
    assert unreadable_lines(tmp_path) == 0


def test_a_file_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(CouldNotLookError, match="scores"):
        read_scores(tmp_path)


def test_what_a_dead_writer_left_stays_on_a_line_of_its_own(tmp_path: Path) -> None:
    add_score(tmp_path, row(1))
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"step": 2, "dig')
    assert read_scores(tmp_path) == (row(1),)
    assert add_score(tmp_path, row(3))
    assert read_scores(tmp_path) == (row(1), row(3))
    assert unreadable_lines(tmp_path) == 1


def test_a_row_that_the_disk_takes_in_part_only_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_score(tmp_path, row(1))
    before = (tmp_path / FILE).read_bytes()
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[: len(data) // 2]))
    with pytest.raises(OSError, match="full"):
        add_score(tmp_path, row(2))
    monkeypatch.undo()
    assert (tmp_path / FILE).read_bytes() == before
    assert add_score(tmp_path, row(2))


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def flock(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("keepstep.storage.scoring.scores.fcntl.flock", flock)
    assert add_score(tmp_path, row(1))
    assert not add_score(tmp_path, row(1))


_WRITER = """
import sys
from pathlib import Path
from keepstep.plan.scores import Score
from keepstep.storage.scoring.scores import add_score
rows = [Score(step, f"d{step}", "task", "scored", watcher=sys.argv[2]) for step in range(60)]
print(sum(add_score(Path(sys.argv[1]), row) for row in rows))
"""


def test_writers_in_processes_and_threads_share_the_rows_out(tmp_path: Path) -> None:
    others = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path), str(number)], stdout=subprocess.PIPE, text=True)
        for number in range(2)
    ]
    won: list[bool] = []
    threads = [
        threading.Thread(target=lambda: won.extend([add_score(tmp_path, row(step)) for step in range(60)]))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = [int(process.communicate(timeout=60)[0]) for process in others]
    assert sum(won) + sum(counts) == 60
    assert sorted(one.step for one in read_scores(tmp_path)) == list(range(60))
    assert unreadable_lines(tmp_path) == 0
