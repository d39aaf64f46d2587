import itertools
from typing import get_args

import pytest
import torch

from keepstep.config.mapper import (
    Cast,
    Composite,
    Concatenate,
    Drop,
    Dtype,
    Graph,
    Keep,
    Leaf,
    Parallel,
    PermuteHeads,
    Rename,
    Scope,
    Select,
    Sequence,
    Split,
    Stack,
    Transpose,
    Unstack,
)
from keepstep.errors import ConfigError
from keepstep.plan.mapping_inverse import invert


def test_the_inverse_goes_backwards_and_its_inverse_is_the_mapper() -> None:
    rename, transpose = Rename(names={"a.{i}": "b.{i}"}), Transpose(names=("b.{i}",))
    stack = Stack(take="b.{i}", give="b", count=2)
    steps: tuple[Leaf | Composite, ...] = (
        rename,
        transpose,
        Parallel(steps=(stack, Scope(prefix="x.", to="y.", steps=(Keep(names=("w",)), PermuteHeads(
            names=("q",), heads=2, to="interleaved"))))),
        Sequence(steps=(Split(take="b", give=("c", "d"), sizes=(1, 1)), Graph(steps=(
            Concatenate(take=("c", "d"), give="e", dim=1),)))),
        Cast(names=("e",), dtype="float32", source="bfloat16"),
    )  # fmt: skip
    back = invert(steps)
    assert back[0] == Cast(names=("e",), dtype="bfloat16", source="float32")
    assert back[-2:] == (transpose, Rename(names={"b.{i}": "a.{i}"}))
    assert isinstance(back[2], Parallel)
    assert back[2].steps[1] == Unstack(take="b", give="b.{i}", count=2)
    widening_undone = invert(back[1:])
    assert widening_undone == steps[:-1]


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (Drop(names=("a", "b")), "drop of a, b cannot be inverted: what it leaves out is gone"),
        (Select(names=("a",)), "select of a cannot be inverted"),
        (Cast(names=("a",), dtype="float32"), "say what dtype the source has"),
        (Cast(names=("a",), dtype="bfloat16", source="float32"), "bfloat16 does not hold all of float32"),
        (Rename(names={"a": "c", "b": "c"}), "rename of a, b gives one name twice"),
        (Scope(prefix="m.", steps=(Drop(names=("a",)),)), "drop of a cannot be inverted"),
    ],
)
def test_a_step_that_loses_something_has_no_inverse(step: Leaf | Composite, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        invert((step,))


SMALL = {"float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int16", "int8", "uint8"}


@pytest.mark.parametrize(("source", "dtype"), list(itertools.product(sorted(SMALL), get_args(Dtype))))
def test_a_cast_has_an_inverse_if_every_value_comes_back(source: str, dtype: str) -> None:
    """All bit patterns of the small dtypes are tried, but for NaNs, whose bits mean nothing."""
    kind = getattr(torch, source)
    bits = torch.arange(2 ** (8 * kind.itemsize), dtype=torch.int32)
    values = bits.to(torch.uint8 if kind.itemsize == 1 else torch.uint16).view(kind)
    values = values[~values.isnan()] if kind.is_floating_point else values
    back = values.to(getattr(torch, dtype)).to(kind)
    exact = torch.equal(values.view(torch.uint8), back.view(torch.uint8))
    try:
        invert((Cast(names=("a",), dtype=dtype, source=source),))  # type: ignore[arg-type]
    except ConfigError:
        allowed = False
    else:
        allowed = True
    assert not allowed or exact
    # An integer may come back out of a dtype that does not hold it, by wrapping round.
    if kind.is_floating_point and getattr(torch, dtype).is_floating_point:
        assert allowed == exact
