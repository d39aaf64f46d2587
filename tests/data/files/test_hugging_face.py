import pickle
from pathlib import Path
from typing import Any

import datasets
import pytest

from keepstep.data.files import hugging_face
from keepstep.data.loader import GlobalBatchLoader
from keepstep.errors import ConfigError
from keepstep.plan.batching import divide


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    datasets.disable_progress_bars()
    rows = datasets.Dataset.from_dict({"n": list(range(20)), "text": [str(i) * i for i in range(20)]})
    rows.save_to_disk(str(folder / "one"), num_shards=3)
    rows.select([5, 3, 1]).save_to_disk(str(folder / "chosen"))
    datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(str(folder / "splits"))
    return folder


def taken(dataset: Any, **options: Any) -> list[Any]:
    loader = GlobalBatchLoader(dataset, divide(6, 2, 1), 0, seed=0, shuffle=False, epochs=1, num_workers=2, **options)
    return [row["n"] for step in loader for micro in step for row in micro.data]


def test_rows_in_order(folder: Path) -> None:
    data = hugging_face(folder / "one")
    assert [data[index]["n"] for index in range(len(data))] == list(range(20))
    assert data[3] == {"n": 3, "text": "333"}
    assert [data.id_of(0), data.id_of(19)] == ["0", "19"]
    assert [Path(file).suffix for file in data.data_files()] == [".arrow"] * 3
    assert taken(pickle.loads(pickle.dumps(data))) == list(range(20))
    with pytest.raises(IndexError):
        data.id_of(20)


def test_rows_that_were_chosen(folder: Path) -> None:
    data = hugging_face(folder / "chosen")
    assert [data[index]["n"] for index in range(len(data))] == [5, 3, 1]


def test_a_dataset_is_a_data_set_as_it_is(folder: Path) -> None:
    assert taken(datasets.load_from_disk(str(folder / "one")), collate=list) == list(range(20))


@pytest.mark.parametrize(("name", "message"), [("splits", "the folder of one: test, train"), ("none", "no data set")])
def test_what_is_no_single_data_set_is_refused(folder: Path, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        hugging_face(folder / name)
