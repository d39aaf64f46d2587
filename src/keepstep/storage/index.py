"""`__<rank>.index`: the block digests of a rank's shard files, and which tensor lies where. Binary, no pickle.

Layout: 8 bytes magic, 4 bytes little-endian length of the header, the header (JSON), then the digests of all files.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from keepstep.plan import layout
from keepstep.storage.digest import BLOCK_SIZE, DIGEST_SIZE

_MAGIC = b"KSINDEX3"
_MAX_HEADER = 1 << 30


class IndexFormatError(ValueError):
    """The bytes are not an index that this version reads."""


@dataclass(frozen=True)
class IndexItem:
    """Where one tensor shard or value lies in a file: offset and length in bytes, its frame included.

    The bytes of a tensor, row by row, begin at `data`. `dtype` (torch's name), `shape` of the shard and `at`, its place
    in the whole tensor, are empty for a Python value. Two items with one place are two names of one thing.
    """

    key: str
    offset: int
    length: int
    dtype: str = ""
    shape: tuple[int, ...] = ()
    at: tuple[int, ...] = ()
    data: int = 0


@dataclass(frozen=True)
class IndexedFile:
    """One shard file: its items, and the joined digests of its blocks."""

    name: str
    size: int
    items: tuple[IndexItem, ...]
    digests: bytes

    @property
    def blocks(self) -> int:
        """The number of its blocks; the last may be short."""
        return -(-self.size // BLOCK_SIZE)

    def items_at(self, block: int) -> list[str]:
        """Keys of the items that touch a block."""
        begin, end = block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE
        return [item.key for item in self.items if item.offset < end and item.offset + item.length > begin]


def to_bytes(files: Sequence[IndexedFile]) -> bytes:
    """The content of an index file."""
    return header_of([(f.name, f.size, f.items) for f in files]) + b"".join(f.digests for f in files)


def header_of(files: Sequence[tuple[str, int, Sequence[IndexItem]]]) -> bytes:
    """All of an index file but the digests, which follow: name, size and items of each shard file."""
    header = {
        "block_size": BLOCK_SIZE,
        "files": [
            {
                "name": name,
                "size": size,
                "items": [[i.key, i.offset, i.length, i.dtype, i.shape, i.at, i.data] for i in items],
            }
            for name, size, items in files
        ],
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    return _MAGIC + len(text).to_bytes(4, "little") + text


def from_bytes(data: bytes) -> list[IndexedFile]:
    """Read an index file. Raises IndexFormatError with what is wrong."""
    if data[:8] != _MAGIC:
        raise IndexFormatError("it does not begin like an index file")
    length = int.from_bytes(data[8:12], "little")
    if length > _MAX_HEADER or len(data) < 12 + length:
        raise IndexFormatError("its header is cut off")
    try:
        header = json.loads(data[12 : 12 + length])
        if header["block_size"] != BLOCK_SIZE:
            raise IndexFormatError(f"block size {header['block_size']!r} is not {BLOCK_SIZE}")
        files, place = [], 12 + length
        for entry in header["files"]:
            name, size = str(entry["name"]), int(entry["size"])
            if not layout.is_safe_file_name(name):
                raise IndexFormatError(f"file name {name!r} is not allowed")
            count = -(-size // BLOCK_SIZE) * DIGEST_SIZE
            items = tuple(
                IndexItem(str(k), int(o), int(n), str(d), tuple(map(int, s)), tuple(map(int, a)), int(b))
                for k, o, n, d, s, a, b in entry["items"]
            )
            files.append(IndexedFile(name, size, items, data[place : place + count]))
            place += count
    except (KeyError, TypeError, RecursionError) as error:
        raise IndexFormatError(f"a field is missing or of the wrong type ({error!r})") from None
    except ValueError as error:
        raise error if isinstance(error, IndexFormatError) else IndexFormatError(str(error)) from None
    if place != len(data):
        raise IndexFormatError(f"it is {len(data)} bytes long, not {place}")
    return files
