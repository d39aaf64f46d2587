"""Parts of a file come back right, and no changed byte of a block that is touched gets through."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keepstep.plan.blocks import rest, runs_of, share_out
from keepstep.storage.blocks import DamagedBlocksError, VerifiedFile
from keepstep.storage.digest import BLOCK_SIZE, block_digests
from keepstep.storage.index import IndexedFile, IndexItem

SIZE = 5 * BLOCK_SIZE + 123
DATA = bytes(i * 7 % 251 for i in range(SIZE))
ITEMS = (IndexItem("a", 0, 2 * BLOCK_SIZE), IndexItem("b", 2 * BLOCK_SIZE, SIZE - 2 * BLOCK_SIZE))
INDEXED = IndexedFile("f", SIZE, ITEMS, block_digests(DATA))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "f").write_bytes(DATA)
    return tmp_path


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, SIZE), st.integers(0, SIZE))
def test_any_part_comes_back(folder: Path, first: int, second: int) -> None:
    begin, end = sorted((first, second))
    target = bytearray(end - begin)
    with VerifiedFile(folder, INDEXED) as file:
        file.read_into(begin, memoryview(target))
        assert target == DATA[begin:end]
        assert file.bytes_read <= end - begin + 2 * BLOCK_SIZE
        for low, high in runs_of(file.touched, 1):
            assert low * BLOCK_SIZE < end
            assert high * BLOCK_SIZE > begin


@pytest.mark.parametrize("place", [0, BLOCK_SIZE - 1, 3 * BLOCK_SIZE, SIZE - 1])
def test_a_changed_byte_is_found_where_it_is(folder: Path, place: int) -> None:
    changed = bytearray(DATA)
    changed[place] ^= 1
    (folder / "f").write_bytes(changed)
    with VerifiedFile(folder, INDEXED) as file:
        with pytest.raises(DamagedBlocksError, match="a" if place < 2 * BLOCK_SIZE else "b") as caught:
            file.read_into(0, memoryview(bytearray(SIZE)))
        assert caught.value.blocks == [place // BLOCK_SIZE]
        with pytest.raises(DamagedBlocksError):
            file.verify(0, INDEXED.blocks)


def test_a_file_that_is_too_short_is_damage(folder: Path) -> None:
    (folder / "f").write_bytes(DATA[: 3 * BLOCK_SIZE])
    with VerifiedFile(folder, INDEXED) as file, pytest.raises(DamagedBlocksError, match="ends at byte"):
        file.read_into(0, memoryview(bytearray(SIZE)))


@given(st.lists(st.lists(st.booleans(), min_size=9, max_size=9), min_size=1, max_size=4), st.integers(1, 5))
def test_every_block_that_is_left_is_read_by_one_rank(ranks: list[list[bool]], size: int) -> None:
    touched = [{"f": runs_of(bytes(marks), 1)} for marks in ranks]
    left = rest({"f": 9, "g": 2}, touched)
    wanted = [("f", i) for i in range(9) if not any(marks[i] for marks in ranks)] + [("g", 0), ("g", 1)]
    shares = [share_out(left, rank, size) for rank in range(size)]
    read = [(name, block) for share in shares for name, low, high in share for block in range(low, high)]
    assert sorted(read) == wanted
    amounts = [sum(high - low for _, low, high in share) for share in shares]
    assert max(amounts) - min(amounts) <= 1
