"""Pieces of two layouts cover every element once, and say rightly where it lies."""

import math
import random

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from keepstep.plan.pieces import Shard, pairs, pieces


def layout(generator: random.Random, shape: tuple[int, ...]) -> list[Shard]:
    """Boxes that make up a tensor, cut at random."""
    boxes = [((0,) * len(shape), shape)]
    for _ in range(generator.randrange(4) if shape else 0):
        at, size = boxes.pop(generator.randrange(len(boxes)))
        dim = generator.randrange(len(shape))
        cut = generator.randint(0, size[dim])
        for begin, length in ((0, cut), (cut, size[dim] - cut)):
            boxes.append(
                (
                    (*at[:dim], at[dim] + begin, *at[dim + 1 :]),
                    (*size[:dim], length, *size[dim + 1 :]),
                )
            )
    return [Shard(at, size, number, 0) for number, (at, size) in enumerate(boxes)]


@pytest.mark.parametrize("seed", range(150))
def test_any_two_layouts(seed: int) -> None:
    generator = random.Random(seed)
    shape = tuple(generator.randint(1, 7) for _ in range(generator.randrange(4)))
    tensor = np.arange(math.prod(shape)).reshape(shape)
    a, b = layout(generator, shape), layout(generator, shape)
    gap, longest = generator.choice([0, 3, 100]), generator.choice([1, 5, 12, 1000])
    found = []
    for x, y in pairs(a, b):
        parts = {
            side: tensor[tuple(slice(i, i + n) for i, n in zip(shard.at, shard.shape, strict=True))].ravel()
            for side, shard in (("a", x), ("b", y))
        }
        for piece in pieces(x, y, gap=gap, longest=longest):
            assert max(piece.span_a, piece.span_b) <= longest
            assert piece.a + piece.span_a <= parts["a"].size
            assert piece.b + piece.span_b <= parts["b"].size
            own = as_strided(parts["a"][piece.a :], piece.shape, [8 * s for s in piece.strides_a])
            other = as_strided(parts["b"][piece.b :], piece.shape, [8 * s for s in piece.strides_b])
            assert (own == other).all()
            found += own.ravel().tolist()
    assert sorted(found) == list(range(tensor.size))


def test_layouts_of_many_ranks_are_not_compared_pair_by_pair() -> None:
    a = [Shard((8 * n, 0), (8, 4), n, 0) for n in range(3000)]
    b = [Shard((6 * n, 0), (6, 4), n, 0) for n in range(4000)]
    assert len(list(pairs(a, b))) == 6000


def test_equal_rows_go_in_one_piece() -> None:
    one = Shard((0, 0), (64, 32), 0, 0)
    (piece,) = pieces(one, Shard((0, 0), (16, 32), 0, 0), gap=0, longest=1000)
    assert (piece.shape, piece.span_a, piece.span_b) == ((16, 32), 512, 512)
    assert len(list(pieces(one, one, gap=0, longest=1024))) == 2
    # Columns: each row for itself, or all with what lies between them.
    columns = Shard((0, 0), (64, 8), 0, 0)
    assert len(list(pieces(one, columns, gap=23, longest=10_000))) == 64
    (piece,) = pieces(one, columns, gap=24, longest=10_000)
    assert (piece.span_a, piece.span_b) == (63 * 32 + 8, 64 * 8)
