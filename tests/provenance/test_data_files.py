"""Data sets over files are told by the content of the files, also inside of other data sets."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet as pq
from torch.utils.data import ConcatDataset, Subset

from keepstep.data.files import jsonl, parquet
from keepstep.plan.guards import changed_parts
from keepstep.provenance.fingerprint import Fingerprint, fingerprint
from keepstep.storage.content import FileDigests


class Tokenized:
    def __init__(self, base: Any) -> None:
        self.base = base


WITHIN: dict[str, Callable[[Any], Any]] = {
    "itself": lambda data: data,
    "a user's": Tokenized,
    "a Subset": lambda data: Subset(data, [0, 2]),
    "two joined": lambda data: ConcatDataset([data, data]),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / "in" / f"{name}.jsonl").write_text("".join(json.dumps({name: n}) + "\n" for n in range(3)))
    return tmp_path / "in"


def told(data: Any) -> Fingerprint:
    return fingerprint(data, FileDigests())


def changes(before: Fingerprint, after: Fingerprint) -> list[str]:
    return changed_parts({"dataset_parts": before.parts}, {"dataset_parts": after.parts})


@pytest.mark.parametrize("within", WITHIN.values(), ids=list(WITHIN))
def test_a_changed_file_is_seen_and_a_moved_folder_is_not(folder: Path, within: Callable[[Any], Any]) -> None:
    before = told(within(jsonl(folder)))
    assert not before.reason
    moved = folder.rename(folder.parent / "elsewhere")
    assert told(within(jsonl(moved))).value == before.value
    (moved / "b.jsonl").write_text('{"b": 7}\n{"b": 1}\n{"b": 2}\n')
    assert told(within(jsonl(moved))).value != before.value


def test_a_changed_file_is_named(folder: Path) -> None:
    before = told(jsonl(folder))
    (folder / "b.jsonl").write_text("{}\n")
    (folder / "d.jsonl").write_text("{}\n")
    assert changes(before, told(jsonl(folder))) == ["data_files", "data_files: b.jsonl", "data_files: d.jsonl"]


def test_other_columns_are_other_data(tmp_path: Path) -> None:
    pq.write_table(pyarrow.table({"a": [1], "b": [2]}), tmp_path / "x.parquet")
    whole, a, b = (parquet(tmp_path / "x.parquet", columns) for columns in (None, ["a"], ["b"]))
    assert len({told(data).value for data in (whole, a, b)}) == 3
    assert len({told(Tokenized(data)).value for data in (whole, a, b)}) == 3
    assert changes(told(a), told(b)) == ["data_settings"]


def test_of_very_many_files_none_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = told(jsonl(folder))
    monkeypatch.setattr("keepstep.provenance.fingerprint._MAX_FILES", 2)
    assert told(jsonl(folder)).value == named.value
    assert list(told(jsonl(folder)).parts) == ["data_files"]
