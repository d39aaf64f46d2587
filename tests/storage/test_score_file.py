"""Scores as those see them who delete."""

from pathlib import Path

import pytest

from keepstep.errors import CouldNotLookError
from keepstep.plan.scores import SCORED, Score, to_line
from keepstep.storage.score_file import ScoreFile, ScoreReader, read_score_file, reader_of


def line(step: int) -> str:
    return to_line(Score(step, f"d{step}", "task", SCORED, metrics={"a": step / 10}))


def test_without_a_file_nothing_is_known(tmp_path: Path) -> None:
    assert read_score_file(tmp_path) == ScoreFile(tmp_path / "scores.jsonl")


def test_lines_that_are_no_rows_are_told_by_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "scores.jsonl").write_text(f"{line(1)}\n{{torn\n\n{line(2)}\n[]\n")
    found = read_score_file(tmp_path)
    assert [one.step for one in found.known] == [1, 2]
    assert found.unreadable == (2, 5)
    assert found.told == f"{tmp_path / 'scores.jsonl'}: 2 lines are no scores (line 2, 5)"
    (tmp_path / "scores.jsonl").write_text("x\n" * 20)
    assert read_score_file(tmp_path).told.endswith("20 lines are no scores (line 1, 2, 3, 4, 5, 6, 7, 8, ...)")


def test_whatever_a_line_holds_it_is_a_row_or_none(tmp_path: Path) -> None:
    rows = [
        "[" * 100_000,
        '{"step": 1}',
        '{"step": "1", "digest": "d", "set": "task", "outcome": "scored"}',
        '{"step": 1, "digest": ["d"], "set": "task", "outcome": "scored"}',
        '{"step": 1, "digest": "d", "set": "task", "outcome": "scored", "metrics": [1]}',
        '{"step": 1, "digest": "d", "set": "task", "outcome": "scored", "metrics": {"a": {}}}',
        '{"step": 1, "digest": "d", "set": "task", "outcome": "failed", "problem": {"a": []}}',
        "\\ud800",
    ]
    (tmp_path / "scores.jsonl").write_bytes("\n".join([*rows, line(2), ""]).encode() + b"\xff\x00\n")
    found = read_score_file(tmp_path)
    assert found.known[-1].metrics == {"task/a": 0.2}
    assert {1, 2, 3, 4, 5, 6, 8, 10} <= set(found.unreadable)


def test_the_mark_that_some_editors_begin_a_file_with_is_no_part_of_a_row(tmp_path: Path) -> None:
    (tmp_path / "scores.jsonl").write_text(f"{line(1)}\n", encoding="utf-8-sig")
    found = read_score_file(tmp_path)
    assert ([one.step for one in found.known], found.unreadable) == ([1], ())


def test_it_is_read_again_only_when_it_has_changed(tmp_path: Path) -> None:
    reader, path = ScoreReader(), tmp_path / "scores.jsonl"
    assert not reader.read(tmp_path).is_there
    assert not reader.was_there
    path.write_text(f"{line(1)}\n")
    first = reader.read(tmp_path)
    assert reader.read(tmp_path) is first
    with path.open("a") as file:
        file.write(f"{line(2)}\n")
    assert [one.step for one in reader.read(tmp_path).known] == [1, 2]
    path.rename(tmp_path / "away")
    assert not reader.read(tmp_path).is_there
    assert reader.was_there
    path.mkdir()
    with pytest.raises(CouldNotLookError, match="cannot read"):
        reader.read(tmp_path)


def test_a_process_has_one_reader_for_a_folder(tmp_path: Path) -> None:
    assert reader_of(tmp_path) is reader_of(tmp_path / ".." / tmp_path.name)
    assert reader_of(tmp_path) is not reader_of(tmp_path / "other")
