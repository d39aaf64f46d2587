"""Merges files of arrays: what they hold is copied to its place in one file, which is mapped."""

import json
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import safe_open

from keepstep.errors import DamagedOutputsError

Order = Iterator[tuple[int, int]]
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1"} | {
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
    "BOOL": "?",
}


def merge_npy(paths: Sequence[Path], order: Order, scratch: Path, target: Path) -> None:
    """Merge .npy files of arrays whose rows have one shape and type."""
    parts = [np.load(path, mmap_mode="r", allow_pickle=False) for path in paths]
    if not parts:
        with scratch.open("wb") as file:
            np.save(file, np.empty(0))
        return
    _refuse_differing({str((part.dtype, part.shape[1:])): path for part, path in zip(parts, paths, strict=True)})
    rows = sum(len(part) for part in parts)
    out = np.lib.format.open_memmap(scratch, "w+", parts[0].dtype, (rows, *parts[0].shape[1:]))
    _copy(order, parts, out)
    out.flush()


def _copy(order: Order, parts: Sequence[Any], out: npt.NDArray[Any]) -> None:
    taken, at = [0] * len(parts), 0
    for index, count in order:
        begin = taken[index]
        out[at : at + count] = parts[index][begin : begin + count]
        taken[index] += count
        at += count


def merge_safetensors(paths: Sequence[Path], order: Order, scratch: Path, target: Path) -> None:
    """Merge safetensors files with the same columns; ids that are no numbers lie in the header of each."""
    runs = list(order)
    files: list[Any] = [safe_open(path, framework="np") for path in paths]
    layouts = [{name: _slice_of(file, name) for name in file.keys()} for file in files]  # noqa: SIM118 - no mapping
    _refuse_differing({str(sorted(layout.items())): path for layout, path in zip(layouts, paths, strict=True)})
    columns = layouts[0] if layouts else {}
    rows = sum(count for _, count in runs)
    header: dict[str, Any] = {}
    end = 0
    for name, (kind, shape) in columns.items():
        size = np.dtype(_TYPES[kind]).itemsize * rows * int(np.prod(shape, dtype=np.int64))
        header[name] = {"dtype": kind, "shape": [rows, *shape], "data_offsets": [end, end + size]}
        end += size
    ids = [json.loads(found["ids"]) for file in files if "ids" in (found := file.metadata() or {})]
    if ids:
        header["__metadata__"] = {"ids": json.dumps(_ids(runs, ids))}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with scratch.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + end)
    for name, (kind, shape) in columns.items():
        begin = 8 + len(text) + header[name]["data_offsets"][0]
        place = np.memmap(scratch, _TYPES[kind], "r+", begin, (rows, *shape))
        _copy(iter(runs), [file.get_slice(name) for file in files], place)
        place.flush()


def _slice_of(file: Any, name: str) -> tuple[str, tuple[int, ...]]:
    part = file.get_slice(name)
    return part.get_dtype(), tuple(part.get_shape()[1:])


def _ids(runs: Sequence[tuple[int, int]], ids: Sequence[Sequence[Any]]) -> list[Any]:
    parts = [iter(part) for part in ids]
    return [next(parts[index]) for index, count in runs for _ in range(count)]


def _refuse_differing(layouts: dict[str, Path]) -> None:
    if len(layouts) > 1:
        (first, a), (second, b) = list(layouts.items())[:2]
        raise DamagedOutputsError(f"{a.name} holds {first} and {b.name} holds {second}; they do not make one array")
