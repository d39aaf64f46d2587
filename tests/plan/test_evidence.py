"""What digests tell of ranges is never wrong, and they decide where they can."""

import hashlib
import random

import pytest

from keepstep.plan.evidence import Digests, judge, runs

BLOCK = 8


def digests(data: bytes) -> Digests:
    blocks = [data[i : i + BLOCK] for i in range(0, len(data), BLOCK)]
    return Digests(b"".join(hashlib.md5(block).digest() for block in blocks), BLOCK, 16)


@pytest.mark.parametrize("seed", range(300))
def test_any_range(seed: int) -> None:
    generator = random.Random(seed)
    size = generator.randint(1, 60)
    begin_a, begin_b = generator.randrange(20), generator.randrange(20)
    if generator.random() < 0.8:
        begin_b = begin_b // BLOCK * BLOCK + begin_a % BLOCK
    value = bytes(generator.randrange(3) for _ in range(size))
    other = bytearray(value)
    for _ in range(generator.randrange(3)):
        other[generator.randrange(size)] ^= 1
    ends = [bytes(generator.randrange(2) for _ in range(generator.randrange(9))) for _ in range(2)]
    a = bytes(begin_a) + value + ends[0]
    b = bytes(begin_b) + bytes(other) + ends[1]
    verdict = judge(digests(a), begin_a, digests(b), begin_b, size)
    aligned = begin_a % BLOCK == begin_b % BLOCK
    if verdict.equal is None:
        assert all(value[i] == other[i] or any(x <= i < y for x, y in verdict.open) for i in range(size))
        assert not aligned or all(y - x < BLOCK for x, y in verdict.open)
    else:
        assert aligned
        assert verdict.equal == (value == other)
    cuts = runs(digests(a), begin_a, digests(b), begin_b, size)
    assert [0, *(end for _, end, _ in cuts)] == [*(begin for begin, _, _ in cuts), size]
    assert all(value[x:y] == other[x:y] for x, y, equal in cuts if equal)
    for i in range(0, len(b), BLOCK) if aligned else ():
        inside = list(range(i - begin_b, i - begin_b + BLOCK))
        if (
            inside[0] >= 0
            and inside[-1] < size
            and value[inside[0] : inside[-1] + 1] == other[inside[0] : inside[-1] + 1]
        ):
            assert any(x <= inside[0] and inside[-1] < y and equal for x, y, equal in cuts)


def test_a_file_without_digests_is_to_be_read() -> None:
    none = Digests(b"", BLOCK, 16)
    assert judge(none, 0, digests(bytes(16)), 0, 16).open == ((0, 16),)
    assert judge(none, 0, none, 0, 16).open == ((0, 16),)
