"""By how much numbers differ, against torch and plain float64."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from keepstep.ops.numbers import decoder
from keepstep.ops.values import Summary, ValueDifference

FLOATS = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "bool"]
COMPLEX = ["complex32", "complex64", "complex128"]


def raw(tensor: torch.Tensor) -> Any:
    return tensor.contiguous().view(torch.uint8).numpy().reshape(-1)


def summed(a: torch.Tensor, b: torch.Tensor | None) -> ValueDifference:
    summary = Summary(str(a.dtype).removeprefix("torch."), a.element_size())
    summary.add(raw(a), None if b is None else raw(b))
    return summary.result()


def expected(a: torch.Tensor, b: torch.Tensor) -> tuple[float, float, float]:
    wide = torch.complex128 if a.is_complex() else torch.float64
    x, y = a.to(wide), b.to(wide)
    apart = (x - y).abs()
    return float(apart.max()), float(apart.mean()), float(apart.norm() / x.norm())


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("name", FLOATS + COMPLEX)
def test_against_torch(name: str) -> None:
    dtype = getattr(torch, name)
    base = torch.randn(100_003, dtype=torch.complex128 if name in COMPLEX else torch.float64)
    a, b = base.to(dtype), (base + 0.3 * torch.randn_like(base)).to(dtype)
    found = summed(a, b)
    assert found.elements == 100_003
    assert found.differing == int((a.to(base.dtype) != b.to(base.dtype)).sum()) > 0
    assert (found.max_abs, found.mean_abs, found.relative) == pytest.approx(expected(a, b), rel=2e-6)
    assert summed(a, a).differing == 0
    assert summed(a, a).relative == 0


@pytest.mark.parametrize("name", INTS)
def test_whole_numbers(name: str) -> None:
    dtype = getattr(torch, name)
    top = 2 if name == "bool" else 100
    a, b = (torch.randint(0, top, (5000,)).to(dtype) for _ in range(2))
    found = summed(a, b)
    assert found.differing == int((a != b).sum())
    assert (found.max_abs, found.mean_abs, found.relative) == pytest.approx(expected(a, b))


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float16"])
def test_every_code_of_a_small_dtype(name: str) -> None:
    dtype = getattr(torch, name)
    codes = (
        torch.arange(256, dtype=torch.uint8) if "float8" in name else torch.arange(-(1 << 15), 1 << 15).to(torch.int16)
    )
    values = codes.view(dtype)
    decode = decoder(name)
    assert decode is not None
    np.testing.assert_array_equal(decode(raw(values)), values.float().numpy())


def test_numbers_of_dtypes_that_are_not_known() -> None:
    assert decoder("float8_e8m0fnu") is None
    assert decoder("F4") is None
    with pytest.raises(ValueError, match="float8_e8m0fnu"):
        Summary("float8_e8m0fnu", 1)


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e-8, 1.0, 1e18, 1e37])
def test_float32_of_any_size(scale: float) -> None:
    """Second moments are tiny: their squares are below what float32 holds."""
    a = torch.randn(70_000) * scale
    b = a * 1.001
    found = summed(a, b)
    assert (found.max_abs, found.mean_abs, found.relative) == pytest.approx(expected(a, b), rel=1e-5)


def test_differences_that_are_tiny_beside_the_numbers() -> None:
    a = torch.full((4096,), 1.0)
    b = a.clone()
    b[7] = math.nextafter(1.0, 2.0) if b.dtype == torch.float64 else 1 + 2**-23
    found = summed(a, b)
    assert (found.differing, found.max_abs) == (1, 2**-23)
    assert found.relative == pytest.approx(2**-23 / 64)
    found = summed(a.double(), a.double() + 1e-14)
    assert found.max_abs == pytest.approx(1e-14, rel=1e-1)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64", "complex64"])
def test_nan_and_infinity_are_counted_and_left_out(name: str) -> None:
    a = torch.ones(1000, dtype=getattr(torch, name))
    b = a.clone()
    a[:3], b[:2] = math.nan, math.nan
    b[2] = math.inf
    a[5] = b[5] = math.inf
    b[9], b[11] = 3.0, math.nan
    found = summed(a, b)
    assert (found.nonfinite_a, found.nonfinite_b) == (4, 5)
    assert found.differing == 3
    assert (found.max_abs, found.mean_abs) == pytest.approx((2.0, 2.0 / 995))
    assert found.relative == pytest.approx(2 / math.sqrt(995))
    assert summed(a, a.clone()).differing == 0
    assert summed(a, None).nonfinite_b == 4


def test_nothing_and_zero() -> None:
    zero = torch.zeros(10)
    assert summed(zero, -zero) == ValueDifference(10, 10, 0, 0, 0.0, 0.0, 0.0)
    assert summed(zero, zero + 1).relative is None
    assert summed(zero + 1, zero).relative == 1.0
    lost = torch.full((2,), math.nan)
    assert summed(lost, zero[:2]).mean_abs is None
    assert (
        summed(torch.tensor([1.7e308], dtype=torch.float64), -torch.tensor([1.7e308], dtype=torch.float64)).max_abs
        is None
    )


def test_what_is_not_finite_comes_first() -> None:
    a = torch.ones(3)
    lost, much, infinite, little = (
        summed(a, torch.tensor([1, 1, math.nan])),
        summed(a, a * 2),
        summed(a * 0, a),
        summed(a, a + 1e-3),
    )
    order = sorted([little, much, infinite, lost], key=lambda v: (v.order[0], -v.order[1]))
    assert order == [lost, infinite, much, little]


def test_sums_do_not_depend_on_the_parts() -> None:
    a, b = torch.randn(300_000), torch.randn(300_000)
    whole, parts = summed(a, b), Summary("float32", 4)
    for at in range(0, 300_000, 12_345):
        parts.add(raw(a[at : at + 12_345]), raw(b[at : at + 12_345]))
    found = parts.result()
    assert (found.max_abs, found.differing) == (whole.max_abs, whole.differing)
    assert found.relative == pytest.approx(whole.relative, rel=1e-6)
