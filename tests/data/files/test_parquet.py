import pickle
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet as pq

from keepstep.data.files import parquet
from keepstep.data.loader import GlobalBatchLoader
from keepstep.errors import ConfigError, DataError
from keepstep.plan.batching import divide
from tests.rig import forks


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """20 rows in files of 7 (row groups of 3), 0 (also an empty file) and 13."""
    begin = 0
    (tmp_path / "in").mkdir()
    for name, count in (("a", 7), ("b", 0), ("d", 13)):
        n = list(range(begin, begin + count))
        table = pyarrow.table({"n": pyarrow.array(n, pyarrow.int64()), "text": [None if i % 5 else str(i) for i in n]})
        pq.write_table(table, tmp_path / "in" / f"{name}.parquet", row_group_size=3)
        begin += count
    (tmp_path / "in" / "c.parquet").touch()
    return tmp_path / "in"


def numbers(data: Any, order: Any = range(20)) -> list[int]:
    return [data[index]["n"] for index in order]


def test_rows_of_all_row_groups_in_any_order(folder: Path) -> None:
    data = parquet(folder)
    assert len(data) == 20
    assert numbers(data) == list(range(20))
    assert numbers(data, reversed(range(20))) == list(reversed(range(20)))
    assert data[5] == {"n": 5, "text": "5"}
    assert data[6] == {"n": 6, "text": None}
    assert [data.id_of(index) for index in (0, 6, 7)] == ["a.parquet#0", "a.parquet#6", "d.parquet#0"]


def test_a_row_group_is_read_once_for_its_neighbours(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    original = pq.ParquetFile.read_row_group

    def note(self: Any, number: int, **options: Any) -> Any:
        read.append(number)
        return original(self, number, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", note)
    assert numbers(parquet(folder), range(4, 12)) == list(range(4, 12))
    assert read == [1, 2, 0, 1]


def test_only_the_columns_that_are_asked_for(folder: Path) -> None:
    assert parquet(folder, columns=["text"])[5] == {"text": "5"}
    with pytest.raises(DataError, match=r"a\.parquet: has no column txt"):
        parquet(folder, columns=["txt"])[0]


def test_it_survives_pickling_forks_and_workers(folder: Path) -> None:
    data = parquet(folder)
    assert numbers(data) == list(range(20))
    assert forks.values(lambda: numbers(data), 2) == [list(range(20))] * 2
    loader = GlobalBatchLoader(
        pickle.loads(pickle.dumps(data)), divide(6, 2, 1), 0, seed=0, shuffle=False, epochs=1, num_workers=2
    )
    assert [row["n"] for step in loader for micro in step for row in micro.data] == list(range(20))


def test_what_cannot_be_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "e.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match=r"e\.parquet: no Parquet file, or a damaged one"):
        len(parquet(folder))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigError, match=r"pip install 'keepstep\[data\]'"):
        parquet(folder)


def test_a_damaged_row_group_is_named(folder: Path) -> None:
    path = folder / "a.parquet"
    content = bytearray(path.read_bytes())
    content[4:60] = bytes(56)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.parquet, row group 0: cannot be read"):
        parquet(path)[0]
