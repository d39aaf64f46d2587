"""Makes wrong inputs of right ones. The same random numbers make the same inputs."""

import copy
import json
import pickle
import pickletools
import random
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

Mutation = Callable[[random.Random, bytes], bytes]

_NUMBERS: tuple[Any, ...] = (
    0,
    -1,
    1,
    255,
    2**31,
    2**32 - 1,
    2**32,
    2**62,
    2**63 - 1,
    2**63,
    -(2**63),
    10**300,
    10**4299,
)
_VALUES: tuple[Any, ...] = (
    *_NUMBERS,
    *(True, None, 1.5, float("nan"), float("inf"), "", "..", "../x", "/etc/passwd", "a\0b", "\udcff", "x" * 5000),
    *([], {}, [[]], {"a": []}, "float32", "bool", [0] * 2000, ["a", 1, 2]),
)
_WORDS = [struct.pack("<I", n % 2**32) for n in _NUMBERS] + [struct.pack("<Q", n % 2**64) for n in _NUMBERS]
_GLOBALS = (
    b"cos\nsystem\n",
    b"cbuiltins\neval\n",
    b"cbuiltins\ngetattr\n",
    b"ctorch\nload\n",
    b"ctorch\nfloat32\n",
    b"ctorch\nSize\n",
    b"ctorch\n_dynamo\n",
    b"ctorch._utils\n_rebuild_tensor_v2\n",
    b"ctorch.storage\nUntypedStorage\n",
    b"ctorch.serialization\n_get_layout\n",
    b"ccollections\nOrderedDict\n",
    b"cpathlib\nPosixPath\n",
    b"c_codecs\nencode\n",
    *(
        b"ctorch.distributed.checkpoint.metadata\n" + name + b"\n"
        for name in (
            b"Metadata",
            b"MetadataIndex",
            b"TensorStorageMetadata",
            b"TensorProperties",
            b"ChunkStorageMetadata",
            b"_MEM_FORMAT_ENCODING",
            b"StorageMeta",
        )
    ),
    b"ctorch.distributed.checkpoint.filesystem\n_StorageInfo\n",
)
_TOKENS = (
    *_GLOBALS,
    *(bytes([code]) for code in b"(.0N\x88\x89Rabde])}lsut\x81\x85\x86\x87\x93\x942\x8f\x90\x91\x92\x97\x98Q"),
    *(
        b"K\x00",
        b"K\x01",
        b"M\xff\xff",
        b"J\xff\xff\xff\xff",
        b"J\xff\xff\xff\x7f",
        b"\x8a\x08" + b"\xff" * 7 + b"\x7f",
    ),
    *(b"q\x00", b"q\x01", b"h\x00", b"h\x01", b"r\xff\xff\xff\xff", b"r\x00\x00\x00\x40", b"j\xff\xff\xff\xff"),
    *(
        b"X\x01\x00\x00\x00a",
        b"\x8c\x03fqn",
        b"\x8c\x06offset",
        b"\x8c\x04size",
        b"\x8c\x0d__hash__\x00\x00\x00\x00\x00",
    ),
    *(b"\x8c\x08__init__", b"\x8c\x09__class__", b"X\xff\xff\xff\x7f", b"B\xff\xff\xff\x7f", b"C\x01a"),
    *(b"\x8d" + b"\xff" * 8, b"\x8e" + b"\xff" * 7 + b"\x0f", b"\x96" + b"\x00" * 4 + b"\x40\x00\x00\x00"),
    *(
        b"\x95" + b"\xff" * 7 + b"\x0f",
        b"\x8b\xff\xff\xff\x7f",
        b"\x8b\xff\xff\xff\xff",
        b"\x80\x02",
        b"\x80\x04",
        b"\x80\x63",
    ),
    *(b"I999999\n", b"L" + b"9" * 3000 + b"L\n", b"F1e999\n", b"Vabc\n", b"S'a'\n", b"p0\n", b"g0\n", b"P1\n"),
    *(
        b"ios\nsystem\n",
        b"o",
        b"\x82\x01",
        b"\x83\x01\x00",
        b"\x84\x01\x00\x00\x00",
        b"G\x7f\xf8\x00\x00\x00\x00\x00\x00",
    ),
)


def any_bytes(rng: random.Random, data: bytes) -> bytes:
    """Flips, cuts, repeats and overwrites bytes, once or a few times."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(8):
            case 0 | 1 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 2 if at < len(out):
                out[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            case 3:
                del out[at:]
            case 4:
                del out[at : at + rng.choice((1, 2, 4, 8, 64))]
            case 5:
                end = min(len(out), at + rng.choice((1, 4, 16, 200)))
                out[at:at] = out[at:end] * rng.choice((1, 1, 2, 30))
            case 6:
                word = rng.choice(_WORDS)
                out[at : at + len(word)] = word
            case 7:
                other = rng.randrange(len(out) + 1)
                out[at : at + 64] = out[other : other + rng.randrange(1, 65)]
    return bytes(out)


def any_json(rng: random.Random, data: bytes) -> bytes:
    """Puts another value, or another key, somewhere into a JSON text."""
    body = json.loads(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        holder, key = _any_place(rng, body)
        match rng.randrange(4):
            case 0 if isinstance(holder, dict):
                holder[rng.choice(("", "..", "a/b", "files", "x" * 300, ".metadata"))] = holder.pop(key)
            case 1:
                del holder[key]
                if not holder and holder is body:
                    break
            case 2 if isinstance(holder, list):
                holder *= 2
            case _:
                holder[key] = copy.deepcopy(rng.choice(_VALUES))
        if not body:
            break
    return json.dumps(body).encode()


def _any_place(rng: random.Random, body: Any) -> tuple[Any, Any]:
    holder: Any = {"": body}
    key: Any = ""
    while True:
        inner = holder[key]
        if not isinstance(inner, dict | list) or not inner or (rng.random() < 0.2 and holder[key] is not body):
            return holder, key
        holder, key = inner, rng.choice(list(inner)) if isinstance(inner, dict) else rng.randrange(len(inner))


def any_pickle(rng: random.Random, data: bytes) -> bytes:
    """Takes opcodes out of a pickle, repeats some, puts others in, or is nothing but opcodes."""
    if rng.random() < 0.15:
        return b"\x80\x04" + b"".join(rng.choices(_TOKENS, k=rng.randrange(1, 60))) + b"."
    bounds = _bounds(data)
    parts = [data[a:b] for a, b in zip(bounds, [*bounds[1:], len(data)], strict=True)]
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        at = rng.randrange(len(parts))
        match rng.randrange(5):
            case 0:
                del parts[at : at + rng.choice((1, 1, 2, 10))]
                parts = parts or [b"."]
            case 1:
                parts[at:at] = parts[at : at + rng.choice((1, 2, 5, 20))] * rng.choice((1, 1, 2, 50))
            case 2:
                parts[at] = rng.choice(_TOKENS)
            case 3:
                other = rng.randrange(len(parts))
                parts[at], parts[other] = parts[other], parts[at]
            case _:
                parts[at:at] = rng.choices(_TOKENS, k=rng.choice((1, 1, 2, 4)))
    return b"".join(parts)


@lru_cache(maxsize=64)
def _bounds(data: bytes) -> list[int]:
    return [at for _, _, at in pickletools.genops(data) if at is not None]


def hostile_pickles() -> list[bytes]:
    """Each does harm to a reader that trusts it."""
    size = b"ctorch\nSize\n"
    index = b"ctorch.distributed.checkpoint.metadata\nMetadataIndex\n"
    deep = b"\x80\x04}(" + b"N" + b"\x85" * 100_000 + b"Nu."
    through_memo = b"\x80\x04}(N" + b"\x85\x94N\x86\x94" * 40_000 + b"Nu."
    hidden = b"\x80\x04}(N" + b"]N\x61\x30\x85" * 60_000 + b"Nu."
    kept = b"\x80\x04}(N" + b"\x85Nb" * 60_000 + b"Nu."
    pollution = [
        b"\x80\x04" + module + b"N}\x8c\x08__init__N\x73\x86b."
        for module in (index, size, b"ccollections\nOrderedDict\n", b"cpathlib\nPosixPath\n", *_GLOBALS)
    ]
    doubled = b"\x80\x04}" + _doubled(lambda n: b"\x94", 60) + b"s."
    numbered = b"\x80\x02}" + _doubled(lambda n: b"q" + bytes([n]), 60) + b"s."
    wide = b"\x80\x04}N\x94" + b"".join(b"(" + (b"h" + bytes([n])) * 1000 + b"t\x94" for n in range(5)) + b"Ns."
    # The byte of a number that a careless reader takes for the begin of a string, in which the rest would lie unseen.
    unseen = b"\x80\x02\x8a\x01XJ\x00\x00\x00" + b"\x00Nr\xff\xff\xff\x7f".ljust(0x4A, b"N") + b"."
    popped = b"\x80\x04}(N\x85" + b"\x8c\x00\x940\x8c\x00\x86" * 20_000 + b"Nu."
    itself = b"\x80\x04" + index + b")\x81\x94}(\x8c\x03fqnh\x00\x85ub}h\x00Ns."
    bombs = (
        b"\x80\x04]\x94"
        + b"".join(b"](h" + bytes([n]) * 1 + (b"h" + bytes([n])) * 9 + b"e\x94" for n in range(40))
        + b"."
    )
    return [
        *(deep, through_memo, hidden, kept, itself, bombs, *pollution),
        *(doubled, numbered, wide, unseen, popped),
        b"\x80\x04Nr\xff\xff\xff\xff.",
        b"\x80\x04N\x94r\xff\xff\xff\x7f.",
        b"\x96" + (1 << 40).to_bytes(8, "little") + b".",
        b"\x8e" + (1 << 40).to_bytes(8, "little") + b".",
        b"\x8d" + (1 << 63).to_bytes(8, "little") + b".",
        b"\x95" + (1 << 62).to_bytes(8, "little") + b".",
        b"X\xff\xff\xff\xff.",
        b"(" * 100_000 + b".",
        b"]" * 100_000 + b"a" * 99_999 + b".",
        b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.",
        b"\x80\x04\x8c\x05torch\x8c\x0aserializat\x93.",
        b"\x80\x04\x8c\x05torch\x8c\x0bSize.__new__\x93.",
        b"cos\nsystem\n(X\x04\x00\x00\x00truetR.",
        b"(X\x04\x00\x00\x00trueios\nsystem\n.",
        pickle.dumps({"a": [1, {2, 3}]}, 5),
        pickle.dumps(bytearray(b"x"), 5),
        b"",
        b".",
    ]


def _doubled(put: Callable[[int], bytes], levels: int) -> bytes:
    """A tuple that holds one twice that holds one twice, and so on, as the key of a dict."""
    levelled = [b"N" + put(0)] + [b"h" + bytes([n]) + b"h" + bytes([n]) + b"\x86" + put(n + 1) for n in range(levels)]
    return b"(" + b"".join(levelled) + b"t" + put(levels + 1) + b"N"


def pick(rng: random.Random, seeds: Sequence[bytes], mutations: Sequence[Mutation]) -> bytes:
    """One wrong input: of one seed, or of the begin of one and the end of another."""
    data = rng.choice(seeds)
    if rng.random() < 0.05:
        other = rng.choice(seeds)
        return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]
    data = rng.choice(mutations)(rng, data)
    return any_bytes(rng, data) if rng.random() < 0.05 else data
