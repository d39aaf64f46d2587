"""Reads ranges of files on the Hub."""

import importlib
import re
from dataclasses import dataclass
from typing import Any

from keepstep.storage.stores.hub_calls import token

# Seconds without a byte.
_SILENCE = 60.0
_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+)")
_BEHIND_THE_END = 416


@dataclass(frozen=True)
class Range:
    """Bytes of a file: fewer than were asked for only at its end.

    Attributes:
        total: how many the file has.
    """

    data: bytes
    total: int


def read_range(repo: str, path: str, revision: str, begin: int, count: int) -> Range:
    """Read up to `count` bytes from byte `begin` on. For `hub_calls.ask`: raises what the Hub's client does."""
    from huggingface_hub import hf_hub_url

    client: Any = importlib.import_module("huggingface_hub.utils")
    headers = {
        **client.build_hf_headers(token=token()),
        "Range": f"bytes={begin}-{begin + count - 1}",
        "Accept-Encoding": "identity",  # a range of what is packed would be another one
    }
    response = client.get_session().get(hf_hub_url(repo, path, revision=revision), headers=headers, timeout=_SILENCE)
    told = _RANGE.fullmatch(response.headers.get("Content-Range") or "")
    if response.status_code == _BEHIND_THE_END:
        return Range(b"", int(told[2]) if told else begin)
    client.hf_raise_for_status(response)
    data = bytes(response.content)
    if response.status_code != 206:  # a server that knows no ranges sends all
        return Range(data[begin : begin + count], len(data))
    if told is None or told[1] is None or int(told[1]) != begin:
        raise ValueError(f"the answer is another range ({response.headers.get('Content-Range')})")
    total = int(told[2])
    if len(data) != min(count, total - begin):
        raise ValueError(f"the answer has {len(data)} bytes of {min(count, total - begin)}")
    return Range(data, total)
