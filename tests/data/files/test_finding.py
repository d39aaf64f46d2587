import re
from pathlib import Path

import pytest

from keepstep.data.files.finding import find_files
from keepstep.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.jsonl", "a.jsonl", "deep/c.ndjson", "deep/.hidden.jsonl", "_meta/d.jsonl", "e.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (".", ["a.jsonl", "b.jsonl", "deep/c.ndjson"]),
        ("*.jsonl", ["a.jsonl", "b.jsonl"]),
        ("**/*.ndjson", ["deep/c.ndjson"]),
        (["b.jsonl", "a.jsonl"], ["b.jsonl", "a.jsonl"]),
        (["e.txt", "deep"], ["e.txt", "deep/c.ndjson"]),
        (Path("e.txt"), ["e.txt"]),
    ],
    ids=["folder", "pattern", "any depth", "order given", "several kinds", "path"],
)
def test_files_patterns_and_folders(
    folder: Path, paths: object, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert find_files(paths, (".jsonl", ".ndjson")) == tuple(str(folder / name) for name in names)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([], "names no file"),
        ("c.jsonl", "c.jsonl: there is no such file"),
        (["a.jsonl", "*.jsonl"], r"a.jsonl is taken twice, by a.jsonl and by *.jsonl"),
        ("_meta/..", "no file that ends in .tar lies below the folder"),
    ],
)
def test_what_finds_nothing_or_one_file_twice_is_refused(
    folder: Path, paths: object, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigError, match=re.escape(message)):
        find_files(paths, (".tar",))  # type: ignore[arg-type]
