"""Logs of a run, of which each look reads what is new."""

import json
from pathlib import Path
from typing import Any

import pytest

from keepstep.ops.report import logs
from keepstep.ops.report.gather import gather
from keepstep.ops.report.logs import METRICS, RunLogs
from keepstep.ops.report.rows import FollowedFile
from keepstep.plan.report.saves import costs_of
from keepstep.plan.report.story import story_of
from tests.rig.report_runs import commit, lines, saved


class Rows(list[dict[str, Any]]):
    """All rows, in order."""

    add = list.append


def write(path: Path, text: str, mode: str = "a") -> None:
    with path.open(mode) as file:
        file.write(text)


def test_only_what_was_appended_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = FollowedFile(tmp_path / "rows.jsonl", Rows)
    read: list[bytes] = []
    monkeypatch.setattr(
        "keepstep.ops.report.rows.json.loads",
        lambda line: read.append(line) or json.JSONDecoder().decode(line.decode()),
    )
    write(file._path, '{"a": 1}\n{"a": 2}\nnothing\n{"a": ')
    notes: list[str] = []
    assert file.look(notes) == [{"a": 1}, {"a": 2}]
    assert notes == ["rows.jsonl: 1 of 3 lines are no rows; they are left out"]
    read.clear()
    write(file._path, '3}\n{"a": 4}')
    assert file.look([]) == [{"a": 1}, {"a": 2}, {"a": 3}, {"a": 4}]
    write(file._path, '\n{"a": 5}\n')
    assert file.look([]) == [{"a": number} for number in range(1, 6)]
    assert [line.strip() for line in read] == [b'{"a": 3}', b'{"a": 4}', b"", b'{"a": 5}']


def test_a_file_that_was_cut_or_replaced_is_read_anew(tmp_path: Path) -> None:
    file = FollowedFile(tmp_path / "rows.jsonl", Rows)
    write(file._path, '{"a": 1}\n{"a": 2}\n')
    assert len(file.look([])) == 2
    write(file._path, '{"a": 3}\n', "w")
    assert file.look([]) == [{"a": 3}]
    # Cut and longer again before anybody has looked.
    write(file._path, '{"a": 4}\n{"a": 5}\n', "w")
    assert file.look([]) == [{"a": 4}, {"a": 5}]
    write(tmp_path / "other", '{"a": 4}\n{"a": 5}\n{"a": 6}\n')
    (tmp_path / "other").rename(file._path)
    assert file.look([]) == [{"a": 4}, {"a": 5}, {"a": 6}]
    file._path.unlink()
    notes: list[str] = []
    assert file.look(notes, "gone") == []
    assert notes == ["gone"]


def test_a_line_without_an_end_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keepstep.ops.report.rows._MOST_LINE", 16)
    file = FollowedFile(tmp_path / "rows.jsonl", Rows)
    write(file._path, '{"a": 1}\n' + "x" * 100 + '\n{"a": 2}\n')
    notes: list[str] = []
    assert file.look(notes) == [{"a": 1}, {"a": 2}]
    assert notes == ["rows.jsonl: 1 of 3 lines are no rows; they are left out"]


def test_a_second_look_tells_what_a_first_one_would(tmp_path: Path) -> None:
    commit(tmp_path, 10)
    kept = RunLogs(tmp_path)
    for begin in (1, 11):
        for name, rows in (
            ("saves.jsonl", [saved(step, 1, ranks=2) for step in range(begin, begin + 10)]),
            (METRICS, [{"step": step, "loss": 1 / step} for step in range(begin, begin + 10)]),
        ):
            write(tmp_path / name, "".join(json.dumps(row) + "\n" for row in rows))
        again, anew = story_of(gather(tmp_path, kept)), story_of(gather(tmp_path))
        assert (again.saves, again.series, again.step) == (anew.saves, anew.series, anew.step)
    assert again.step == 20


def test_of_many_ranks_the_newest_saves_have_details(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = [{"mode": "sync"}, {"mode": "async"}, {"mode": "async", "lost_seconds": 0.5}]
    rows = [saved(step, 1, ranks=4, **modes[step % 3]) for step in range(1, 10)]
    lines(tmp_path / "saves.jsonl", rows)
    whole = costs_of(RunLogs(tmp_path).saves.look([]).rows)
    monkeypatch.setattr(logs, "_MOST_RANKS", 10)
    found = RunLogs(tmp_path).saves.look([]).rows
    assert [len(row.get("ranks", [])) for row in found] == [0] * 7 + [4, 4]
    assert {row["world_size"] for row in found[:7]} == {4}
    assert costs_of(found).saves == whole.saves
    assert len(costs_of(found).ranks) == 4
