"""Data sets over large files: a position leads to its record at once, so a resume seeks and reads nothing before it."""

import os
from collections.abc import Sequence

from keepstep.data.files.finding import Paths
from keepstep.data.files.json_lines import JsonLines
from keepstep.data.files.row_groups import ParquetRows
from keepstep.data.files.saved import SavedDataset
from keepstep.data.files.tars import TarSamples

__all__ = ["hugging_face", "jsonl", "parquet", "tar"]


def jsonl(paths: Paths) -> JsonLines:
    """Lines of JSON. Blank lines are passed over.

    Args:
        paths: files, patterns such as `data/*.jsonl`, or folders (all `.jsonl` and `.ndjson` below them).

    Raises:
        ConfigError: no file is found.
    """
    return JsonLines(paths)


def parquet(paths: Paths, columns: Sequence[str] | None = None) -> ParquetRows:
    """Rows of Parquet files, as dicts. Each process keeps the row group in memory that it read last.

    Args:
        paths: files, patterns or folders (all `.parquet` below them).
        columns: what is read; None reads all.

    Raises:
        ConfigError: no file is found, or pyarrow is missing.
    """
    return ParquetRows(paths, columns)


def tar(paths: Paths) -> TarSamples:
    """Samples in tar files: neighbours `a.jpg` and `a.json` are the sample `{"__key__": "a", "jpg": ..., "json": ...}`.

    Values are bytes: nothing is decoded.

    Args:
        paths: files, patterns or folders (all `.tar` below them).

    Raises:
        ConfigError: no file is found.
    """
    return TarSamples(paths)


def hugging_face(path: str | os.PathLike[str]) -> SavedDataset:
    """Rows of a data set that was written with `save_to_disk`, as dicts.

    Args:
        path: its folder; of several splits that of one.

    Raises:
        ConfigError: there is no such data set, or `datasets` is missing.
    """
    return SavedDataset(path)
