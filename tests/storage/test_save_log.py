"""Reading `saves.jsonl`, whatever lies there."""

import json
import os
from pathlib import Path

import pytest

from keepstep.storage.save_log import NAME, SaveLog


def save(log: SaveLog, ranks: int = 2, host: str = "a") -> None:
    told = [{"host": host, "bytes": 1, "write": 1.0, "sync": 0.0}] * ranks
    log.saved(step=1, attempt=1, mode="sync", seconds=2.0, commit_seconds=1.0, ranks=told, straggler=None)


def test_what_is_no_regular_file_is_an_error_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / NAME)
    with pytest.raises(OSError, match="no regular file"):
        SaveLog(tmp_path).rows()
    assert SaveLog(tmp_path).last_saved() == {}
    save(SaveLog(tmp_path))


def test_what_is_told_of_ranks_is_left_out_unparsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = SaveLog(tmp_path)
    save(log, 1000, ',"ranks":[')
    parsed = []
    loads = json.loads
    monkeypatch.setattr("json.loads", lambda text: parsed.append(len(text)) or loads(text))
    (row,) = log.rows()
    assert (row["step"], row["slowest_rank"], "ranks" in row) == (1, 0, False)
    assert parsed[0] < 500
    assert len(log.last_saved()["ranks"]) == 1000


def test_torn_lines_and_those_of_others_are_as_they_were(tmp_path: Path) -> None:
    log = SaveLog(tmp_path)
    save(log)
    path = tmp_path / NAME
    line = path.read_bytes()
    others = b'{"step":2,"ranks":[{"a":1}],"more":1}\n{"step":3,"why":",\\"ranks\\":[{}]}"}\n'
    path.write_bytes(line[:-10] + b"\n" + others + line.strip())
    assert [(row["step"], row.get("more"), row.get("why")) for row in log.rows()] == [
        (2, 1, None),
        (3, None, ',"ranks":[{}]}'),
        (1, None, None),
    ]
