"""How far apart the numbers of two tensors are, summed up part by part."""

import math
from dataclasses import dataclass

import numpy as np

from keepstep.ops.numbers import Numbers, Raw, decoder, differing

# Elements that are worked on at once: their differences stay in a core's cache.
_PART = 64 * 1024
_ROW = 4096
_ONES = np.ones(_ROW, np.float32)
# Squares of float32 in this range neither overflow nor lose what counts beside the largest of them.
_LEAST, _MOST = 1e-12, 1e15


@dataclass(frozen=True)
class ValueDifference:
    """How two tensors of one dtype and shape differ.

    Attributes:
        elements: how many each has.
        differing: how many are not the same bits: 0.0 and -0.0 differ, a NaN is equal to the same NaN.
        nonfinite_a, nonfinite_b: how many are NaN or infinite. They are left out of all that follows.
        max_abs, mean_abs: of |a - b|, over all elements that are finite on both sides.
        relative: ||a - b|| / ||a|| over the same elements (Euclidean norms). None where that is infinite, which it
            is when a is zero and b is not.
    """

    elements: int
    differing: int
    nonfinite_a: int
    nonfinite_b: int
    max_abs: float | None
    mean_abs: float | None
    relative: float | None

    @property
    def order(self) -> tuple[bool, float]:
        """Whether all numbers are finite, and `relative`: a table has those first that are not, then the largest."""
        return not (self.nonfinite_a or self.nonfinite_b), math.inf if self.relative is None else self.relative


class Summary:
    """Sums of one pair of tensors. Every part is summed in float32 by rows of 4,096, all else in float64.

    Args:
        dtype: torch's name of a dtype that `decoder` knows.
        element: bytes of an element.
    """

    def __init__(self, dtype: str, element: int) -> None:
        decode = decoder(dtype)
        if decode is None:
            raise ValueError(f"the numbers of {dtype} are not known")
        self._decode, self._element = decode, element
        self._space = np.empty(_PART, np.float32)
        self._elements = self._differing = self._nonfinite_a = self._nonfinite_b = self._left_out = 0
        self._max = self._sum = self._squares = self._norm = 0.0

    def add(self, raw_a: Raw, raw_b: Raw | None) -> None:
        """Take the bytes of the next elements; `raw_b` is None where they are the same as `raw_a`."""
        step = _PART * self._element
        with np.errstate(all="ignore"):
            for at in range(0, len(raw_a), step):
                self._part(raw_a[at : at + step], None if raw_b is None else raw_b[at : at + step])

    def result(self) -> ValueDifference:
        """What all parts together make."""
        finite = self._elements - self._left_out
        relative = math.inf if self._norm == 0 and self._squares else math.sqrt(self._squares / (self._norm or 1.0))
        return ValueDifference(
            self._elements,
            self._differing,
            self._nonfinite_a,
            self._nonfinite_b,
            _finite(self._max),
            _finite(self._sum / finite) if finite else None,
            _finite(relative),
        )

    def _part(self, raw_a: Raw, raw_b: Raw | None) -> None:
        count = len(raw_a) // self._element
        self._elements += count
        unequal = 0 if raw_b is None else differing(raw_a, raw_b, self._element)
        self._differing += unequal
        a = self._decode(raw_a)
        b = self._decode(raw_b) if raw_b is not None and unequal else a
        if a.dtype != np.float32 or not self._quickly(a, b):
            self._carefully(a, b)

    def _quickly(self, a: Numbers, b: Numbers) -> bool:
        """Take float32 numbers of which all are finite and none is extreme; False if they are others."""
        norm = _dot(a, a)
        if not _LEAST**2 < norm < _MOST**2:
            return False
        if a is not b:
            apart = np.subtract(a, b, out=self._space[: len(a)])
            np.abs(apart, out=apart)
            largest = float(np.maximum.reduce(apart))
            if not _LEAST < largest < _MOST:
                return False
            self._max = max(self._max, largest)
            self._sum += _dot(apart, _ONES)
            self._squares += _dot(apart, apart)
        self._norm += norm
        return True

    def _carefully(self, a: Numbers, b: Numbers) -> None:
        """Take any numbers, in float64."""
        good_a, good_b = np.isfinite(a), np.isfinite(b)
        good = good_a & good_b
        self._nonfinite_a += int(np.count_nonzero(~good_a))
        self._nonfinite_b += int(np.count_nonzero(~good_b))
        self._left_out += int(np.count_nonzero(~good))
        wide = np.complex128 if np.iscomplexobj(a) else np.float64
        own = a[good].astype(wide)
        self._norm += float(np.square(np.abs(own)).sum())
        if a is not b and len(own):
            apart = np.abs(own - b[good].astype(wide))
            self._max = max(self._max, float(apart.max()))
            self._sum += float(apart.sum())
            self._squares += float(np.square(apart).sum())


def _dot(x: Numbers, y: Numbers) -> float:
    """The sum of products, by rows that are too short for the threads of BLAS; those are added in float64."""
    whole = len(x) - len(x) % _ROW
    rows, rest = x[:whole].reshape(-1, _ROW), x[whole:]
    if y is _ONES:
        return sum(np.vecdot(rows, y).tolist(), float(np.vecdot(rest, y[: len(rest)])))
    return sum(np.vecdot(rows, y[:whole].reshape(-1, _ROW)).tolist(), float(np.vecdot(rest, y[whole:])))


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
