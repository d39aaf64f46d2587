"""A data set is told from others by what it holds: every change is seen, and nothing that is none."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

from keepstep.errors import ConfigError
from keepstep.provenance.fingerprint import UNKNOWN, fingerprint
from keepstep.storage.content import FileDigests

datasets.disable_progress_bars()


class Rows(Dataset[Any]):
    """A user's data set. Taking a sample of it is an error: fingerprints must not."""

    def __init__(self, rows: Any, **more: Any) -> None:
        self.rows = rows
        self.__dict__.update(more)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("a sample was taken")

    def __iter__(self) -> Any:
        raise AssertionError("it was iterated")


class Slots:
    __slots__ = ("rows",)

    def __init__(self, rows: Any) -> None:
        self.rows = rows


class StreamOfRows(IterableDataset[Any]):
    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __iter__(self) -> Any:
        raise AssertionError("it was iterated")


@dataclass
class Example:
    text: str
    label: int


def of(dataset: Any) -> str:
    value = fingerprint(dataset, FileDigests()).value
    assert len(value) == 64, value
    return value


def table(rows: list[int]) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"id": rows, "text": [f"row {row}" for row in rows]})


def array(rows: list[int]) -> np.ndarray[Any, Any]:
    return np.array(rows, np.int64)


KINDS: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "rows": Rows,
    "slots": Slots,
    "strings": lambda rows: Rows([f"<{row}>" for row in rows]),
    "dicts": lambda rows: Rows([{"id": row, "text": f"{row}"} for row in rows]),
    "dataclasses": lambda rows: Rows([Example(f"{row}", row) for row in rows]),
    "tensors": lambda rows: TensorDataset(torch.tensor(rows), torch.tensor(rows).float()),
    "list of tensors": lambda rows: Rows([torch.tensor(row) for row in rows]),
    "array": lambda rows: Rows(array(rows)),
    "array of objects": lambda rows: Rows(np.array([f"{row}" for row in rows], object)),
    "structured array": lambda rows: Rows(np.array([(row, 0.5) for row in rows], [("a", "i4"), ("b", "f8")])),
    "transposed array": lambda rows: Rows(np.stack([array(rows), array(rows)]).T),
    "bfloat16": lambda rows: Rows(torch.tensor(rows).to(torch.bfloat16)),
    "frame": lambda rows: Rows(pd.DataFrame({"id": rows, "text": [f"{row}" for row in rows]})),
    "concatenated": lambda rows: ConcatDataset([Rows(rows[:3]), Rows(rows[3:])]),
    "subset": lambda rows: Subset(Rows(list(range(100))), rows),
    "hugging face": table,
    "hugging face, selected": lambda rows: table(list(range(100))).select(rows),
    "arrow": lambda rows: Rows(table(rows).data.table),
    "nested": lambda rows: Rows({"train": [(row, [row, {"x": row}]) for row in rows]}),
    "stream over rows": lambda rows: StreamOfRows(rows),
}
BASE = [5, 3, 8, 1, 9, 2]
CHANGES = {
    "a row inserted": [5, 3, 8, 7, 1, 9, 2],
    "a row removed": [5, 3, 8, 1, 9],
    "two rows swapped": [3, 5, 8, 1, 9, 2],
    "a row edited": [5, 3, 8, 1, 9, 6],
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_change_of_rows_is_seen_in_every_kind_of_data_set(kind: str) -> None:
    make = KINDS[kind]
    digests = {name: of(make(list(rows))) for name, rows in {"same": BASE, **CHANGES}.items()}
    assert len(set(digests.values())) == len(digests)
    assert of(make(list(BASE))) == digests["same"]


def test_a_shuffle_with_another_seed_is_seen() -> None:
    rows = table(list(range(1000)))
    shuffled = [rows.shuffle(seed=seed) for seed in (1, 2)]
    assert len({of(one) for one in [rows, *shuffled]}) == 3
    assert of(rows.shuffle(seed=1)) == of(shuffled[0])
    random_rows = list(range(1000))
    random.Random(1).shuffle(random_rows)
    assert of(Rows(random_rows)) != of(Rows(list(range(1000))))


def test_rows_of_arrow_count_and_not_the_pieces_that_they_lie_in() -> None:
    parts = datasets.concatenate_datasets([table(list(range(700))), table(list(range(700, 1000)))])
    assert of(parts) == of(table(list(range(1000))))


def test_sets_have_no_order_and_dicts_do() -> None:
    assert of(Rows([{"a", "b", "c"}])) == of(Rows([{"c", "b", "a"}]))
    assert of(Rows([{"a", "b"}])) != of(Rows([{"a", "c"}]))


def test_the_kind_of_a_value_counts() -> None:
    values = [[1], [1.0], [True], ["1"], [b"1"], [None], [[1]], [np.int32(1)], [np.int64(1)], [torch.tensor(1)]]
    assert len({of(Rows(value)) for value in values}) == len(values)


def test_code_generators_locks_and_loggers_say_nothing() -> None:
    import logging
    import threading

    first = Rows([1], f=lambda x: x, rng=np.random.default_rng(), lock=threading.Lock(), log=logging.getLogger("a"))
    second = Rows([1], f=len, rng=np.random.default_rng(7), lock=threading.Lock(), log=logging.getLogger("b"))
    assert of(first) == of(second)


def test_an_object_that_holds_itself_is_no_trap() -> None:
    rows = Rows([1, 2])
    rows.own = rows  # type: ignore[attr-defined]
    other = Rows([1, 3])
    other.own = other  # type: ignore[attr-defined]
    assert of(rows) != of(other)


class TestFiles:
    def files(self, folder: Path, content: list[bytes]) -> list[Path]:
        folder.mkdir(parents=True)
        paths = [folder / f"part-{number}.bin" for number in range(len(content))]
        for path, data in zip(paths, content, strict=True):
            path.write_bytes(data)
        return paths

    def samples(self, kind: str, paths: list[Path]) -> Any:
        match kind:
            case "declared":
                return Rows([], data_files=paths)
            case "texts":
                return Rows([str(path) for path in paths])
            case "paths":
                return Rows(paths)
            case "pairs":
                return Rows([(str(path), 1) for path in paths], root=str(paths[0].parent))
            case "attribute":
                return Rows([], first=str(paths[0]), second=paths[1])
            case "mapped":
                return Rows([np.memmap(path, np.uint8, "r") for path in paths])
            case "open":
                return Rows([path.open("rb") for path in paths])
        raise AssertionError(kind)

    @pytest.mark.parametrize("kind", ["declared", "texts", "paths", "pairs", "attribute", "mapped", "open"])
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
    def test_content_counts_and_not_the_place(self, tmp_path: Path, kind: str) -> None:
        paths = self.files(tmp_path / "alice" / "data", [b"a" * 100, b"b" * 100])
        before = of(self.samples(kind, paths))
        moved = self.files(tmp_path / "bob" / "elsewhere", [b"a" * 100, b"b" * 100])
        assert of(self.samples(kind, moved)) == before
        edited = self.files(tmp_path / "alice" / "edited", [b"a" * 100, b"b" * 99 + b"c"])
        assert of(self.samples(kind, edited)) != before
        swapped = self.files(tmp_path / "alice" / "swapped", [b"b" * 100, b"a" * 100])
        assert of(self.samples(kind, swapped)) != before

    def test_a_folder_alone_says_nothing_about_what_is_read(self, tmp_path: Path) -> None:
        class Folder:
            def __init__(self, root: Path, size: int) -> None:
                self.root, self.size = root, size

        found = fingerprint(Folder(tmp_path, 3), FileDigests())
        assert found.value == UNKNOWN
        assert str(tmp_path) in found.reason

    def test_a_file_that_is_gone_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(OSError, match="gone"):
            fingerprint(Rows([], data_files=[tmp_path / "gone"]), FileDigests())


def test_what_cannot_be_told_is_unknown_and_never_iterated() -> None:
    def generate() -> Any:
        raise AssertionError("it was iterated")
        yield

    for dataset in (
        generate(),
        Rows(generate()),
        datasets.IterableDataset.from_generator(generate),
        Rows([iter([1])]),
        Rows(torch.empty(3, device="meta")),
    ):
        found = fingerprint(dataset, FileDigests())
        assert found.value == UNKNOWN
        assert found.reason


def test_a_declared_fingerprint_wins() -> None:
    assert fingerprint(Rows(object(), fingerprint="c4-2026"), FileDigests()).value == "declared:c4-2026"
    assert fingerprint(Rows(object(), fingerprint=lambda: "v2"), FileDigests()).value == "declared:v2"
    for wrong in ("", 3):
        with pytest.raises(ConfigError, match="must be a text"):
            fingerprint(Rows([], fingerprint=wrong), FileDigests())
    for files in ([], 7, [3]):
        with pytest.raises(ConfigError, match="must be paths"):
            fingerprint(Rows([], data_files=files), FileDigests())


def test_parts_tell_what_has_changed() -> None:
    before = fingerprint(Rows([1], size=3), FileDigests()).parts
    after = fingerprint(Rows([1], size=4), FileDigests()).parts
    assert [name for name in before if before[name] != after[name]] == ["size"]


def digests_of_all() -> dict[str, str]:
    found = {name: fingerprint(make(list(BASE)), FileDigests()).value for name, make in KINDS.items()}
    sets = Rows([{"a", "b", "c", "d"}, {("x", 1), ("y", 2)}])
    return found | {"sets": fingerprint(sets, FileDigests()).value}


def test_processes_agree_whatever_their_hash_seed() -> None:
    script = "import json; from tests.provenance import test_fingerprint as t; print(json.dumps(t.digests_of_all()))"
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": f"{root}/src:{root}"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == digests_of_all()
