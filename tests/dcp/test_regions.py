"""Any region of any tensor is read completely, and hardly more than it."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from keepstep.dcp.regions import Box, overlap, slabs, spans


@st.composite
def regions(draw: st.DrawFn) -> tuple[tuple[int, ...], Box]:
    whole = tuple(draw(st.lists(st.integers(1, 6), min_size=0, max_size=4)))
    at = tuple(draw(st.integers(0, n - 1)) for n in whole)
    shape = tuple(draw(st.integers(1, n - a)) for n, a in zip(whole, at, strict=True))
    return whole, Box(at, shape)


@given(regions(), st.integers(0, 20), st.integers(1, 50))
def test_the_runs_make_up_the_region(case: tuple[tuple[int, ...], Box], gap: int, longest: int) -> None:
    whole, region = case
    tensor = torch.arange(Box((0,) * len(whole), whole).elements).reshape(whole)
    flat = tensor.flatten()
    target = torch.full(region.shape, -1)
    for span in spans(whole, region, gap=gap, longest=longest):
        piece = flat[span.offset : span.offset + span.length]
        view = piece.as_strided(span.shape, span.strides)
        part = target
        for dim, (begin, length) in enumerate(zip(span.at, span.shape, strict=True)):
            part = part.narrow(dim, begin, length)
        assert (part == -1).all(), "read twice"
        part.copy_(view)
    expected = tensor
    for dim, (begin, length) in enumerate(zip(region.at, region.shape, strict=True)):
        expected = expected.narrow(dim, begin, length)
    assert torch.equal(target, expected)


@given(regions(), st.integers(0, 20))
def test_little_is_read_in_vain(case: tuple[tuple[int, ...], Box], gap: int) -> None:
    whole, region = case
    runs = list(spans(whole, region, gap=gap, longest=10**9))
    exact = list(spans(whole, region, gap=0, longest=10**9))
    assert sum(run.length for run in exact) == region.elements
    assert sum(run.length for run in runs) <= region.elements + gap * len(exact)


def test_a_whole_tensor_is_one_run() -> None:
    (run,) = spans((4, 5, 6), Box((0, 0, 0), (4, 5, 6)), gap=0, longest=10**9)
    assert (run.offset, run.length) == (0, 120)
    (run,) = spans((), Box((), ()), gap=0, longest=1)
    assert (run.offset, run.length) == (0, 1)


def test_boxes_overlap_where_both_are() -> None:
    assert overlap(Box((0, 0), (2, 3)), Box((1, 2), (4, 4))) == Box((1, 2), (1, 1))
    assert overlap(Box((0,), (2,)), Box((2,), (2,))) is None
    assert overlap(Box((0,), (0,)), Box((0,), (2,))) is None
    assert overlap(Box((), ()), Box((), ())) == Box((), ())


@given(st.lists(st.integers(0, 6), min_size=0, max_size=4), st.integers(1, 50))
def test_slabs_follow_each_other_and_make_up_the_tensor(shape: list[int], longest: int) -> None:
    whole = torch.arange(math.prod(shape)).reshape(shape)
    boxes = list(slabs(shape, longest))
    parts = [whole[tuple(slice(a, a + n) for a, n in zip(box.at, box.shape, strict=True))] for box in boxes]
    assert all(box.elements <= longest for box in boxes)
    assert [value for part in parts for value in part.flatten().tolist()] == list(range(whole.numel()))
