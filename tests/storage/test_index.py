import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from keepstep.storage.digest import BLOCK_SIZE, DIGEST_SIZE
from keepstep.storage.index import ELEMENT_SIZES, IndexedFile, IndexFormatError, IndexItem, from_bytes, to_bytes

ITEMS = (
    IndexItem("model.w", 0, BLOCK_SIZE + 5, "bfloat16", (4, 2), (0, 2)),
    IndexItem("task.x", BLOCK_SIZE + 5, 7, data=BLOCK_SIZE + 5),
)
FILES = [IndexedFile("__0_0.distcp", BLOCK_SIZE + 12, ITEMS, b"d" * 2 * DIGEST_SIZE), IndexedFile("e", 0, (), b"")]


def test_it_comes_back_as_it_was() -> None:
    assert from_bytes(to_bytes(FILES)) == FILES


def test_a_block_knows_its_items() -> None:
    assert FILES[0].items_at(0) == ["model.w"]
    assert FILES[0].items_at(1) == ["model.w", "task.x"]


@pytest.mark.parametrize("cut", [0, 4, 11, 40, -1])
def test_a_cut_index_is_refused(cut: int) -> None:
    with pytest.raises(IndexFormatError):
        from_bytes(to_bytes(FILES)[:cut])


def test_names_that_leave_the_folder_are_refused() -> None:
    with pytest.raises(IndexFormatError, match="not allowed"):
        from_bytes(to_bytes([IndexedFile("../x", 0, (), b"")]))


@given(st.binary(max_size=200))
def test_any_other_bytes_are_refused(data: bytes) -> None:
    for start in (b"", b"KSINDEX1", b"KSINDEX1\x05\x00\x00\x00"):
        with pytest.raises(IndexFormatError):
            from_bytes(start + data)


def changed(**fields: object) -> bytes:
    """An index of one tensor of 24 bytes in a file of 30 whose fields are replaced."""
    row = {
        "key": "w",
        "offset": 0,
        "length": 30,
        "dtype": "float32",
        "shape": [2, 3],
        "at": [0, 0],
        "data": 6,
        **fields,
    }
    names = ("key", "offset", "length", "dtype", "shape", "at", "data")
    entry = {"name": "f", "size": 30, "items": [[row[name] for name in names]]}
    entry |= {name: value for name, value in fields.items() if name in ("name", "size", "items")}
    text = json.dumps({"block_size": BLOCK_SIZE, "files": [entry]}).encode()
    return b"KSINDEX3" + len(text).to_bytes(4, "little") + text + b"d" * DIGEST_SIZE


def test_the_index_that_is_changed_below_is_right() -> None:
    assert from_bytes(changed())[0].items == (IndexItem("w", 0, 30, "float32", (2, 3), (0, 0), 6),)


@pytest.mark.parametrize("value", [-1, True, 1.0, math.nan, math.inf, "1", None, [1], {}, 1 << 63, 10**400])
@pytest.mark.parametrize("field", ["offset", "length", "data", "size", "shape", "at"])
def test_what_is_no_count_is_refused(field: str, value: object) -> None:
    with pytest.raises(IndexFormatError):
        from_bytes(changed(**{field: [value, 0] if field in ("shape", "at") else value}))


@pytest.mark.parametrize(
    "fields",
    [
        {"length": 31},
        {"length": 29},
        {"offset": 7},
        {"data": 7},
        {"data": 31},
        {"shape": [2, 4]},
        {"shape": [1 << 62, 1 << 62]},
        {"shape": [6]},
        {"dtype": "float64"},
        {"dtype": "float"},
        {"dtype": 3},
        {"key": 3},
        {"name": 3},
        {"name": ".."},
        {"size": 16385},
        {"size": 1 << 62},
        {"items": 3},
        {"items": [[]]},
        {"items": {"a": 1}},
        {"shape": [0] * 2000, "at": [0] * 2000},
    ],
)
def test_items_that_reach_beyond_their_place_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(IndexFormatError):
        from_bytes(changed(**fields))


def test_a_file_that_is_listed_twice_is_refused() -> None:
    with pytest.raises(IndexFormatError, match="twice"):
        from_bytes(to_bytes([IndexedFile("f", 0, (), b""), IndexedFile("f", 0, (), b"")]))


def test_the_sizes_of_elements_are_those_of_torch() -> None:
    dtypes = {one for one in vars(torch).values() if isinstance(one, torch.dtype)}
    assert {str(one).removeprefix("torch."): one.itemsize for one in dtypes} == ELEMENT_SIZES


def test_a_dtype_that_no_reader_knows_is_not_written() -> None:
    with pytest.raises(IndexFormatError, match="unknown"):
        to_bytes([IndexedFile("f", 30, (IndexItem("w", 0, 30, "float1"),), b"d" * DIGEST_SIZE)])
