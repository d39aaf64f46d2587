import json
from pathlib import Path

import pytest

from keepstep.job.tracker import JsonlTracker


def rows(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_a_resumed_run_cuts_off_what_came_after_the_save(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    first = JsonlTracker(path, writes=True)
    for step in (1, 2):
        first.log({"step": step})
    state = first.state_dict()
    for step in (3, 4):
        first.log({"step": step})
    with path.open("a") as file:
        file.write('{"step": 5, "lo')  # the crash cut a line
    second = JsonlTracker(path, writes=True)
    second.load_state_dict(state)
    assert second.run_id == first.run_id
    second.log({"step": 3})
    assert rows(path) == [1, 2, 3]
    assert second.state_dict()["bytes"] == path.stat().st_size


def test_a_fresh_start_keeps_the_rows_of_an_attempt_that_never_saved(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = JsonlTracker(path, writes=True)
    first.log({"step": 1})
    second = JsonlTracker(path, writes=True)
    assert second.state_dict()["bytes"] == 0
    second.log({"step": 1})
    assert rows(path) == [1]
    assert rows(tmp_path / "metrics.jsonl.previous-1") == [1]


def test_only_the_main_process_writes(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tracker = JsonlTracker(path, writes=False)
    tracker.log({"step": 1})
    tracker.load_state_dict({"run_id": "x", "bytes": 5})
    assert not path.exists()


def test_lost_rows_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    JsonlTracker(tmp_path / "metrics.jsonl", writes=True).load_state_dict({"run_id": "x", "bytes": 99})
    assert "has lost rows: 0 bytes, 99 when saved" in caplog.text
