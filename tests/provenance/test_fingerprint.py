"""A data set is told from others by what it holds: every change is seen, and nothing that is none."""

import array as array_module
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

from keepstep.errors import ConfigError
from keepstep.plan.guards import UNKNOWN
from keepstep.provenance.fingerprint import fingerprint
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


class ListWithName(list):  # type: ignore[type-arg]
    def __init__(self, rows: Any, name: str = "x") -> None:
        super().__init__(rows)
        self.name = name


class Mangled:
    __slots__ = ("__rows",)

    def __init__(self, rows: Any) -> None:
        self.__rows = rows

    def __len__(self) -> int:
        return len(self.__rows)


class Lazy(Mapping[int, Any]):
    """A mapping that makes its samples."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Any:
        raise AssertionError("it was iterated")

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("a sample was taken")


class Failing:
    def __init__(self) -> None:
        self.rows = [1]

    @property
    def fingerprint(self) -> str:
        raise RuntimeError("no connection")


def arrow(values: list[Any], kind: Any = None) -> Any:
    return pa.table({"column": pa.array(values, kind)})


DIFFERENT: dict[str, tuple[Any, Any]] = {
    "dtype of an array in a list": ([np.zeros(4, np.int32)], [np.zeros(4, np.float32)]),
    "shape of an array in a list": ([np.arange(6).reshape(2, 3)], [np.arange(6).reshape(3, 2)]),
    "objects in an array in a list": ([np.array(["a", "b"], object)], [np.array(["a", "c"], object)]),
    "the mask of an array": (np.ma.array([1, 2], mask=[True, False]), np.ma.array([1, 2], mask=[False, True])),
    "a list with a name": (ListWithName([1, 2]), ListWithName([2, 1])),
    "the name of a list with a name": (ListWithName([1], "a"), ListWithName([1], "b")),
    "a private slot": (Mangled([1, 2]), Mangled([2, 1])),
    "an argument of a partial": (partial(int, "1"), partial(int, "2")),
    "a pattern": (re.compile("a"), re.compile("b")),
    "a dtype": (torch.float32, torch.float64),
    "a compact array": (array_module.array("i", [1, 2]), array_module.array("i", [2, 1])),
    "a strided view": (memoryview(b"abcd")[::2], memoryview(b"abed")[::2]),
    "a conjugate tensor": (torch.tensor([1 + 1j]).conj(), torch.tensor([1 - 2j]).conj()),
    "an index": (pd.Index([1, 2]), pd.Index([2, 1])),
    "a dictionary column": (arrow(["a", "b", "a"]).column(0).dictionary_encode(),
                            arrow(["a", "c", "a"]).column(0).dictionary_encode()),
    "a list column": (arrow([[1], [2, 3]]), arrow([[1, 2], [3]])),
    "a struct column": (arrow([{"a": 1, "b": "x"}]), arrow([{"a": 1, "b": "y"}])),
    "a column of times": (arrow([1, 2], pa.timestamp("s")), arrow([1, 3], pa.timestamp("s"))),
    "a missing value": (arrow([1, None]), arrow([1, 0])),
    "a missing text": (arrow(["a", None]), arrow(["a", ""])),
    "a column of bytes": (arrow([b"a", b"bc"]), arrow([b"ab", b"c"])),
    "yes and no": (arrow([True, False]), arrow([False, True])),
}  # fmt: skip


@pytest.mark.parametrize("kind", DIFFERENT)
def test_values_of_every_kind_are_told_apart(kind: str) -> None:
    first, second = DIFFERENT[kind]
    assert of(Rows([first])) != of(Rows([second]))
    assert of(Rows([1], held=first)) != of(Rows([1], held=second))
    assert of(Rows([first])) == of(Rows([first]))


def test_objects_in_arrays_are_told_by_value_and_not_by_address() -> None:
    def rows() -> Rows:
        return Rows([np.array([f"{'long'} text {number}" for number in range(3)], object)])

    kept = rows()
    assert of(kept) == of(rows())


def test_arrow_columns_are_the_same_however_they_are_cut(tmp_path: Path) -> None:
    values = [None if number % 7 == 0 else f"row {number}" for number in range(1000)]
    for column in (values, [{"a": v, "b": [1, 2]} for v in values], [v and [v, v] for v in values]):
        whole = arrow(column)
        cut = pa.concat_tables([whole.slice(0, 123), whole.slice(123)])
        assert of(Rows(cut)) == of(Rows(whole))
    rows = table(list(range(25000)))
    rows.save_to_disk(tmp_path / "d")
    assert of(datasets.load_from_disk(tmp_path / "d")) == of(rows)


def test_one_thing_that_cannot_be_told_does_not_hide_the_rest() -> None:
    found = [fingerprint(Rows(rows, handle=iter(rows)), FileDigests()) for rows in ([1, 2], [2, 1])]
    assert found[0].value != found[1].value
    assert found[0].parts["handle"] == UNKNOWN
    assert "handle" in found[0].reason


def test_inert_things_hide_nothing_and_say_nothing() -> None:
    def rows(values: list[int]) -> Rows:
        return Rows(values, dtype=torch.float32, device=torch.device("cpu"), stream=sys.stdout, sentinel=object())

    assert of(rows([1, 2])) != of(rows([2, 1]))
    assert of(rows([1, 2])) == of(rows([1, 2]))


def test_what_is_held_at_a_class_counts_and_a_data_set_that_holds_nothing_is_unknown() -> None:
    def made(values: list[int]) -> Any:
        return type("AtClass", (), {"rows": values, "__len__": lambda self: 2})()

    assert of(made([1, 2])) != of(made([2, 1]))
    assert fingerprint(type("Empty", (), {"__len__": lambda self: 2})(), FileDigests()).value == UNKNOWN


def test_a_lazy_mapping_is_not_asked_for_its_samples() -> None:
    assert of(Subset(Lazy([1, 2]), [0])) != of(Subset(Lazy([2, 1]), [0]))


def test_where_a_job_runs_and_what_it_may_read_are_no_data() -> None:
    first = Rows([1], world_size=2, rank=0, hf_token="old", log=Path("/home/alice/.cache/x"))
    second = Rows([1], world_size=1, rank=0, hf_token="new", log=Path("/home/bob/.cache/y"))
    assert of(first) == of(second)


def test_what_several_rows_share_is_read_once_and_rows_still_differ() -> None:
    vocabulary = {str(number): number for number in range(5000)}
    rows = [Rows([number], vocabulary=vocabulary) for number in range(300)]
    swapped = [rows[1], rows[0], *rows[2:]]
    assert of(Rows(rows)) != of(Rows(swapped))


def test_a_declaration_that_fails_says_so() -> None:
    with pytest.raises(ConfigError, match="no connection"):
        fingerprint(Failing(), FileDigests())


def test_a_declaration_counts_inside_of_others_too() -> None:
    def declared(name: str) -> Any:
        return Subset(Rows([1], fingerprint=name, started=object(), time=np.random.rand()), [0])

    assert of(declared("v1")) == of(declared("v1"))
    assert of(declared("v1")) != of(declared("v2"))


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
            case "rows":
                return Rows([{"image": str(path), "label": 1} for path in paths])
            case "by split":
                return Rows([], files={"train": str(paths[0]), "test": [str(paths[1])]})
            case "relative":
                return Rows([path.name for path in paths], root=str(paths[0].parent))
            case "hugging face":
                columns = {"image": [{"bytes": None, "path": str(path)} for path in paths], "label": [1, 2]}
                return datasets.Dataset.from_dict(columns)
            case "attribute":
                return Rows([], first=str(paths[0]), second=paths[1])
            case "mapped":
                return Rows([np.memmap(path, np.uint8, "r") for path in paths])
            case "open":
                return Rows([path.open("rb") for path in paths])
        raise AssertionError(kind)

    @pytest.mark.parametrize(
        "kind",
        ["declared", "texts", "paths", "pairs", "rows", "by split", "relative", "hugging face", "attribute", "mapped",
         "open"],
    )  # fmt: skip
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

    def test_a_folder_may_be_made_later_and_lie_elsewhere(self, tmp_path: Path) -> None:
        def rows(name: str) -> Rows:
            folders = [str(tmp_path / name / "a"), str(tmp_path / name / "b")]
            return Rows([1], cache_dir=str(tmp_path / name / "cache"), roots=folders)

        before = of(rows("x"))
        (tmp_path / "x" / "cache").mkdir(parents=True)
        (tmp_path / "y" / "a").mkdir(parents=True)
        assert of(rows("x")) == before

    def test_a_log_that_is_written_to_is_no_data(self, tmp_path: Path) -> None:
        with (tmp_path / "log").open("w") as log:
            before = of(Rows([1], log=log))
            log.write("more")
            log.flush()
            assert of(Rows([1], log=log)) == before

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
