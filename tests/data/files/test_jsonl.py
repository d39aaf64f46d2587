import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from keepstep.data.files import jsonl
from keepstep.data.loader import GlobalBatchLoader
from keepstep.errors import DataError
from keepstep.plan.batching import divide
from tests.rig import forks


def write(path: Path, *records: Any, end: str = "\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(record) for record in records) + (end if records else ""))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """20 records in files of 7, 0, 1 and 12."""
    begin = 0
    for name, count in (("a", 7), ("b", 0), ("c/x", 1), ("d", 12)):
        write(tmp_path / "in" / f"{name}.jsonl", *({"n": n, "text": "é" * n} for n in range(begin, begin + count)))
        begin += count
    return tmp_path / "in"


def numbers(data: Any) -> list[int]:
    return [data[index]["n"] for index in range(len(data))]


def test_records_of_all_files_in_order(folder: Path) -> None:
    data = jsonl(folder)
    assert len(data) == 20
    assert numbers(data) == list(range(20))
    assert data[-1]["n"] == 19
    assert [data.id_of(index) for index in (0, 6, 7, 8)] == ["a.jsonl#1", "a.jsonl#7", "c/x.jsonl#1", "d.jsonl#1"]
    with pytest.raises(IndexError):
        data[20]


def test_ids_stay_when_the_folder_is_moved(folder: Path) -> None:
    before = [jsonl(folder).id_of(index) for index in range(20)]
    moved = folder.rename(folder.parent / "elsewhere")
    assert [jsonl(moved).id_of(index) for index in range(20)] == before


def test_a_last_line_without_newline_counts_and_a_blank_one_does_not(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"n": 0}\r\n\n   \n{"n": 1}\n\n  {"n": 2}')
    data = jsonl(path)
    assert numbers(data) == [0, 1, 2]
    assert [data.id_of(index) for index in range(3)] == ["a.jsonl#1", "a.jsonl#4", "a.jsonl#6"]
    assert data.length_of(2) == len(b'  {"n": 2}')


@pytest.mark.parametrize("line", [b"{", b'{"n": "\xff"}', b"1 2"], ids=["cut", "no UTF-8", "two values"])
def test_what_is_no_json_is_named_by_file_and_line(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"n": 0}\n\n' + line + b'\n{"n": 1}\n')
    data = jsonl(path)
    assert data[2] == {"n": 1}
    with pytest.raises(DataError, match=r"a\.jsonl, line 3: no JSON"):
        data[1]


@pytest.mark.parametrize("workers", [0, 1])
def test_the_loader_tells_it_in_one_line(tmp_path: Path, workers: int) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 0}\n{"n": ')
    loader = GlobalBatchLoader(jsonl(path), divide(2, 2, 1), 0, seed=0, shuffle=False, epochs=1, num_workers=workers)
    with pytest.raises(DataError) as error:
        next(iter(loader))
    assert str(error.value) == f"{path}, line 2: no JSON: Expecting value: line 1 column 7 (char 6)"


def test_the_index_is_made_once_and_not_read_again(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert numbers(jsonl(folder)) == list(range(20))
    assert len(list(cache.glob("*.records.npy"))) == 4

    def read(path: str) -> Any:
        raise AssertionError(f"{path} is read")

    monkeypatch.setattr("keepstep.data.files.json_lines.find_lines", read)
    assert numbers(jsonl(folder)) == list(range(20))


def test_a_cache_that_cannot_be_used_costs_only_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "no-folder").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "no-folder"))
    data = pickle.loads(pickle.dumps(jsonl(folder)))
    assert numbers(data) == list(range(20))


def test_it_survives_pickling_forks_and_workers(folder: Path) -> None:
    data = jsonl(folder)
    assert numbers(data) == list(range(20))
    assert numbers(pickle.loads(pickle.dumps(data))) == list(range(20))
    assert forks.values(lambda: [numbers(data) for _ in range(5)], 3) == [[list(range(20))] * 5] * 3
    loader = GlobalBatchLoader(data, divide(6, 2, 1), 0, seed=0, shuffle=False, epochs=1, num_workers=2)
    assert [record["n"] for step in loader for micro in step for record in micro.data] == list(range(20))


def test_thousands_of_files_need_few_that_are_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keepstep.storage.file_index._SMALL_BYTES", 1000)
    for number in range(300):
        (tmp_path / f"{number:04}.jsonl").write_text(f'{{"n": {number}}}\n')
    before = len(os.listdir("/proc/self/fd"))
    data = jsonl(tmp_path)
    assert numbers(data) == list(range(300))
    assert len(os.listdir("/proc/self/fd")) <= before + 32


def test_a_file_that_changes_under_a_running_job_is_named(folder: Path) -> None:
    data = jsonl(folder)
    assert data[0]["n"] == 0
    (folder / "a.jsonl").chmod(0o400)
    (folder / "d.jsonl").chmod(0o400)
    assert data[9]["n"] == 9
    data = pickle.loads(pickle.dumps(data))
    (folder / "d.jsonl").chmod(0o600)
    write(folder / "d.jsonl", {"n": 99})
    with pytest.raises(DataError, match=r"d\.jsonl: was changed while the job runs"):
        data[10]
    (folder / "c" / "x.jsonl").unlink()
    with pytest.raises(DataError, match=r"x\.jsonl: cannot be read: No such file"):
        data[7]


def test_no_record_at_all(tmp_path: Path) -> None:
    assert len(jsonl(write(tmp_path / "a.jsonl"))) == 0


def test_a_data_set_around_it_says_how_long_its_samples_are(folder: Path) -> None:
    """The example of the page about it."""
    page = (Path(__file__).parents[3] / "docs" / "data-files.md").read_text()
    names: dict[str, Any] = {}
    exec(page.split("```python")[1].split("```")[0].replace("data/*.jsonl", f"{folder}/**/*.jsonl"), names)
    data = names["Texts"](str.upper)
    assert [data[index] for index in (0, 2)] == ["", "ÉÉ"]
    assert data.length_of(2) == len('{"n": 2, "text": "\\u00e9\\u00e9"}\n')
