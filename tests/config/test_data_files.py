from typing import Any

import pytest

from keepstep.config import JobConfig, parse_job
from keepstep.config.data_files import DataFilesConfig
from keepstep.errors import ConfigError


def job(dataset: Any) -> JobConfig:
    section = {"batching": {"global_batch_size": 8}, "checkpointing": {"save_dir": "x", "period_steps": 2}}
    return parse_job({"providers": {"model": "a:b", "task": "a:b", "dataset": dataset}, "inference": section})


@pytest.mark.parametrize(
    ("dataset", "wanted"),
    [
        ("a:b", "a:b"),
        ({"kind": "jsonl", "paths": "in/*"}, DataFilesConfig(kind="jsonl", paths="in/*")),
        ({"kind": "tar", "paths": ["a", "b"]}, DataFilesConfig(kind="tar", paths=("a", "b"))),
        (
            {"kind": "parquet", "paths": "in", "columns": ["text"]},
            DataFilesConfig(kind="parquet", paths="in", columns=("text",)),
        ),
    ],
    ids=["import path", "pattern", "list", "columns"],
)
def test_an_import_path_or_files(dataset: Any, wanted: Any) -> None:
    assert job(dataset).providers.dataset == wanted
    assert parse_job(job(dataset).model_dump(mode="json")) == job(dataset)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ("nope", "job: providers.dataset = 'nope': must look like package.module:function"),
        ({"kind": "jsonl"}, "job: providers.dataset.paths: missing; it must be given"),
        ({"kind": "csv", "paths": "x"}, "job: providers.dataset.kind = 'csv': Input should be 'jsonl', 'parquet', "),
        ({"kind": "jsonl", "paths": []}, "job: providers.dataset: paths must be a file, pattern or folder, or a list"),
        ({"kind": "jsonl", "paths": [""]}, "job: providers.dataset: paths must be a file, pattern or folder, or a "),
        ({"kind": "jsonl", "paths": "x", "path": "x"}, "job: providers.dataset.path: unknown key; did you mean paths?"),
        ({"kind": "jsonl", "paths": "x", "columns": ["a"]}, "columns belongs to kind: parquet, not to jsonl"),
        ({"kind": "hugging_face", "paths": ["a", "b"]}, "paths of kind: hugging_face is one folder"),
    ],
    ids=["no path", "missing", "kind", "no paths", "empty path", "unknown key", "columns", "folders"],
)
def test_what_is_neither_is_refused_in_one_line(dataset: Any, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        job(dataset)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
