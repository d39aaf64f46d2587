"""Sizes as people write them."""

import re

from keepstep.errors import ConfigError

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_FORM = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?i?)b?", re.ASCII)


def parse_size(text: str) -> int:
    """Bytes of a text such as `50GB`, `1.5 TiB` or `1000`.

    Raises:
        ConfigError: it is none.
    """
    match = _FORM.fullmatch(text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise ConfigError(f"{text!r} is no size; write 50GB, 1.5TB, 200MiB or a number of bytes")
    return int(float(match[1]) * _UNITS[match[2]])
