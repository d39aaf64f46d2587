import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstep.storage.digest import BLOCK_SIZE, DIGEST_SIZE
from keepstep.storage.index import IndexedFile, IndexFormatError, IndexItem, from_bytes, to_bytes

ITEMS = (
    IndexItem("model.w", 0, BLOCK_SIZE + 5, "bfloat16", (4, 2), (0, 2)),
    IndexItem("task.x", BLOCK_SIZE + 5, 7),
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
