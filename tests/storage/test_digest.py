from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from keepstep.storage.digest import BLOCK_SIZE, BlockDigester, block_digests, digest_file, digest_of_blocks

SIZES = [0, 1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 3 * BLOCK_SIZE, 9 * 1024 * 1024 + 5]


def content(size: int) -> bytes:
    return (bytes(range(256)) * (size // 256 + 1))[:size]


@pytest.mark.parametrize("size", SIZES)
def test_a_file_and_its_bytes_have_the_same_digests(tmp_path: Path, size: int) -> None:
    (tmp_path / "f").write_bytes(content(size))
    assert digest_file(tmp_path / "f") == (size, block_digests(content(size)))


def test_the_rule_is_the_hash_of_the_block_hashes() -> None:
    data = content(BLOCK_SIZE + 10)
    blocks = xxhash.xxh3_128_digest(data[:BLOCK_SIZE]) + xxhash.xxh3_128_digest(data[BLOCK_SIZE:])
    assert block_digests(data) == blocks
    assert digest_of_blocks(blocks) == xxhash.xxh3_128_hexdigest(blocks)


@given(st.lists(st.integers(0, 3 * BLOCK_SIZE), max_size=6))
def test_the_sizes_in_which_bytes_come_do_not_matter(sizes: list[int]) -> None:
    data, digester, place = content(sum(sizes)), BlockDigester(), 0
    for size in sizes:
        digester.update(memoryview(data)[place : place + size])
        place += size
    assert digester.finish() == block_digests(data)
