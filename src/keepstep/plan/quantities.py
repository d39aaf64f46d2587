"""Numbers as people write them: `8B` parameters, `10Gbit/s`."""

import re
from fractions import Fraction

from keepstep.plan.weight_files import SizeError, parse_size

_COUNT = re.compile(r"(\d[\d_,]*(?:\.\d+)?)\s*([KMBGT]?)")
_FACTORS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
_MOST = 10**18
_BITS = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:BIT|BITS|BPS)")


class QuantityError(ValueError):
    """A text that is no such number."""


def parse_count(text: str) -> int:
    """How many: `8B` (10^9), `42M`, `8030261248`, `8_030_261_248` or `8,030,261,248`. Raises QuantityError."""
    match = _COUNT.fullmatch(text.strip().upper())
    count = Fraction(0) if match is None else Fraction(re.sub("[_,]", "", match[1])) * _FACTORS[match[2]]
    if not 1 <= count <= _MOST or count.denominator != 1:
        raise QuantityError(f"{text!r} is no number of parameters; write 8B, 42M or 8030261248")
    return int(count)


def parse_rate(text: str) -> int:
    """Bytes a second of `2GB/s`, `500MiB/s` or, in bits, `10Gbit/s`. Raises QuantityError."""
    bare = re.sub(r"\s*/\s*S$", "", text.strip().upper())
    match = _BITS.fullmatch(bare)
    try:
        rate = parse_size(bare) if match is None else int(Fraction(match[1]) * _FACTORS[match[2]] / 8)
    except SizeError:
        rate = 0
    if rate < 1:
        raise QuantityError(f"{text!r} is no bandwidth; write 2GB/s or 10Gbit/s")
    return rate
