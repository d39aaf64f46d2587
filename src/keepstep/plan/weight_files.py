"""Which file each tensor of an export goes to, and how such a file begins: safetensors, in Hugging Face's layout."""

import json
import math
import re
from collections.abc import Mapping, Sequence

from keepstep.plan.difference import Kind

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
# The one name in a header that is no tensor's.
METADATA = "__metadata__"
# The format's name of each dtype that its readers take, by torch's name. In this order they lie in a file: elements of
# more bytes first, so that each tensor begins at a multiple of its element. It is the order of the reference writer.
DTYPES = {
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
    "complex64": "C64",
    "float32": "F32",
    "uint32": "U32",
    "int32": "I32",
    "bfloat16": "BF16",
    "float16": "F16",
    "uint16": "U16",
    "int16": "I16",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
_RANKS = {dtype: rank for rank, dtype in enumerate(DTYPES)}
_ALIGNMENT = 8
_SHARD = re.compile(r"model-\d{5,}-of-\d{5,}\.safetensors")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?I?B?)")
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12} | {
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}


class SizeError(ValueError):
    """A text that is no size in bytes."""


def parse_size(text: str) -> int:
    """Bytes of `5GB`, `500MB`, `2GiB` or `1000000`; GB is 10^9, as Hugging Face has it. Raises SizeError."""
    match = _SIZE.fullmatch(text.strip().upper())
    unit = None if match is None else _UNITS.get(match[2])
    size = 0 if match is None or unit is None else math.floor(float(match[1]) * unit)
    if size < 1:
        raise SizeError(f"{text!r} is no size; write 5GB, 500MB or a number of bytes")
    return size


def is_weight_file(name: str) -> bool:
    """Whether a file of this name is part of the weights in an export."""
    return name in (SINGLE_FILE, INDEX_FILE) or _SHARD.fullmatch(name) is not None


def divide(kinds: Sequence[Kind], most: int) -> dict[str, list[Kind]]:
    """Name of each file, and the tensors in it in the order in which they lie there.

    Neighbours by name (layer 2 comes before layer 10) share a file. A tensor larger than `most` has one of its own.

    Args:
        kinds: all tensors, with the dtype and the size in bytes that they are written with.
        most: bytes of tensors in a file.
    """
    groups: list[list[Kind]] = []
    held = most
    for kind in sorted(kinds, key=lambda one: _natural(one.key)):
        if not groups or held + kind.size > most:
            groups.append([])
            held = 0
        groups[-1].append(kind)
        held += kind.size
    count = len(groups)
    names = [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]
    ordered = [sorted(group, key=lambda one: (_RANKS[one.dtype], one.key)) for group in groups]
    return {SINGLE_FILE: ordered[0] if ordered else []} if count < 2 else dict(zip(names, ordered, strict=True))


def header(kinds: Sequence[Kind], metadata: Mapping[str, str]) -> bytes:
    """The begin of a file: 8 bytes with the length of what follows, and JSON, which ends at a multiple of 8 bytes.

    Equal arguments give equal bytes: entries of `metadata` are sorted, `format` comes first.
    """
    first = sorted(metadata, key=lambda name: (name != "format", name))
    fields: dict[str, object] = {METADATA: {name: metadata[name] for name in first}}
    at = 0
    for kind in kinds:
        fields[kind.key] = {
            "dtype": DTYPES[kind.dtype],
            "shape": list(kind.shape),
            "data_offsets": [at, at + kind.size],
        }
        at += kind.size
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def index_text(files: Mapping[str, Sequence[Kind]], tied: Mapping[str, str]) -> str:
    """`model.safetensors.index.json`: the file of each tensor. Names left out stand in its metadata, as in a header."""
    places = {kind.key: name for name, kinds in files.items() for kind in kinds}
    total = sum(kind.size for kinds in files.values() for kind in kinds)
    index = {"metadata": {**tied, "total_size": total}, "weight_map": places}
    return json.dumps(index, indent=2, sort_keys=True) + "\n"


def _natural(name: str) -> list[tuple[int, int, str]]:
    parts = re.split(r"(\d+)", name)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part]
