"""Raw bytes of a tensor as numbers that NumPy can subtract."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Raw = npt.NDArray[np.uint8]
Numbers = npt.NDArray[Any]
_BITS = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}


def decoder(dtype: str) -> Callable[[Raw], Numbers] | None:
    """What turns the bytes of a dtype (torch's name) into numbers; None where that is not known.

    float32 and what fits into it come as float32, wider numbers as float64, complex ones as complex64 or complex128.
    """
    return _DECODERS.get(dtype)


def differing(a: Raw, b: Raw, element: int) -> int:
    """How many elements are not the same bits."""
    bits = _BITS.get(element)
    if bits is not None:
        return int(np.count_nonzero(a.view(bits) != b.view(bits)))
    unequal = a.view(np.uint64) != b.view(np.uint64)
    return int(np.count_nonzero(unequal.reshape(-1, element // 8).any(axis=1)))


def _as_is(name: str) -> Callable[[Raw], Numbers]:
    dtype = np.dtype(name)
    return lambda raw: raw.view(dtype)


def _cast(name: str, to: str) -> Callable[[Raw], Numbers]:
    return lambda raw: raw.view(name).astype(to)


def _bfloat16(raw: Raw) -> Numbers:
    """Its bits are the upper half of a float32."""
    wide = raw.view(np.uint16).astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def _float8_e4m3fn(raw: Raw) -> Numbers:
    return _e4m3fn()[raw]


def _float8_e5m2(raw: Raw) -> Numbers:
    return _e5m2()[raw]


@cache
def _e4m3fn() -> Numbers:
    """All values of float8_e4m3fn: 4 bits of exponent with bias 7, no infinity, NaN where all but the sign is set."""
    code = np.arange(256)
    exponent, fraction = (code >> 3) & 15, code & 7
    value = np.where(exponent == 0, fraction * 2.0**-9, (8 + fraction) * 2.0 ** (exponent - 10))
    value[(code & 127) == 127] = np.nan
    return np.where(code & 128, -value, value).astype(np.float32)


@cache
def _e5m2() -> Numbers:
    """All 256 values of float8_e5m2, whose bits are the upper half of a float16."""
    return (np.arange(256, dtype=np.uint16) << 8).view(np.float16).astype(np.float32)


_DECODERS: dict[str, Callable[[Raw], Numbers]] = {
    "float64": _as_is("f8"),
    "float32": _as_is("f4"),
    "float16": _cast("f2", "f4"),
    "bfloat16": _bfloat16,
    "float8_e4m3fn": _float8_e4m3fn,
    "float8_e5m2": _float8_e5m2,
    "bool": _cast("u1", "f4"),
    "int8": _cast("i1", "f4"),
    "uint8": _cast("u1", "f4"),
    "int16": _cast("i2", "f4"),
    "uint16": _cast("u2", "f4"),
    "int32": _cast("i4", "f8"),
    "uint32": _cast("u4", "f8"),
    "int64": _cast("i8", "f8"),
    "uint64": _cast("u8", "f8"),
    "complex32": lambda raw: raw.view("f2").astype("f4").view("c8"),
    "complex64": _as_is("c8"),
    "complex128": _as_is("c16"),
}
