import itertools

from hypothesis import given
from hypothesis import strategies as st

from keepstep.dcp.reads import _BATCH, _GAP, _PIECE, _SMALL, Read, batches
from keepstep.storage.digest import BLOCK_SIZE

SIZES = st.one_of(st.integers(0, 300), st.sampled_from([_SMALL - 1, _SMALL, _PIECE - 1, 2 * _PIECE + 77]))
ONE = memoryview(bytearray(3 * _PIECE))


@given(st.lists(st.tuples(st.integers(0, 3 * _GAP), SIZES), max_size=30))
def test_every_byte_is_read_once_in_pieces_that_suit(gaps: list[tuple[int, int]]) -> None:
    reads, at = [], 0
    for gap, size in gaps:
        at += gap
        reads.append(Read("f", at, ONE[:size]))
        at += size
    found: list[tuple[int, int]] = []
    for batch in batches(list(reversed(reads))):
        begin, end = batch[0].offset, batch[-1].offset + len(batch[-1].target)
        assert end - begin <= max(_BATCH, _PIECE)
        if len(batch) == 1 and len(batch[0].target) >= _SMALL:
            assert end % BLOCK_SIZE == 0 or any(end == read.offset + len(read.target) for read in reads)
        found += [(read.offset, len(read.target)) for read in batch]
    covered = sorted((offset, offset + size) for offset, size in found)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(covered))
    assert sum(size for _, size in found) == sum(len(read.target) for read in reads)
