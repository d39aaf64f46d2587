"""Compares one item of two sides: by digests where they can tell, byte by byte in bounded memory elsewhere."""

import math
import reprlib
import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from keepstep.errors import DamagedCheckpointError
from keepstep.ops.data_reader import DataReader
from keepstep.ops.tensor_source import Item, Side
from keepstep.plan.evidence import judge, runs
from keepstep.plan.pieces import Piece, Shard, overlapping, pairs, pieces

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Raw = npt.NDArray[np.uint8]

# Bytes of each side that are read at once: together they stay in a core's cache.
CHUNK = 256 * 1024
# The same where each read waits for a network.
FAR_CHUNK = 4 * 1024 * 1024
# Rows of a shard that lie no further apart are read together with what is between them.
_GAP = 32 * 1024
# The end of an archive: signature, disks and entries, length and begin of its directory, length of a comment.
_END = struct.Struct("<IHHHHIIH")
_END_SIGNATURE = 0x06054B50
# What an archive of 4 GiB has more at its end, and the mark for that.
_END64, _NONE32 = 76, 0xFFFFFFFF


class Comparer:
    """Two sides whose files are read.

    Args:
        a, b: what lies where.
        read_a, read_b: their files.
        on_bytes: told how many bytes of the pair were dealt with.
    """

    def __init__(
        self, a: Side, b: Side, read_a: DataReader, read_b: DataReader, on_bytes: Callable[[int], None] = lambda _: None
    ) -> None:
        self._a, self._b, self._read_a, self._read_b = a, b, read_a, read_b
        self._on_bytes = on_bytes
        self._chunk = FAR_CHUNK if a.is_far or b.is_far else CHUNK
        self._space: tuple[Raw, Raw] | None = None

    def same_by_digest(self, a: Item, b: Item) -> bool | None:
        """Whether digests alone tell that two items of one kind are equal, or that they are not; None if neither."""
        if _boxes(a) != _boxes(b):
            return None
        verdicts = [self._judge(x, y, a.element * math.prod(x.shape)).equal for x, y in _shards(a, b)]
        return False if False in verdicts else None if None in verdicts else True

    def same(self, a: Item, b: Item) -> bool:
        """Whether two items of one kind are equal, bit for bit. What digests cannot tell is read.

        Raises:
            DamagedCheckpointError: shards overlap, or a file is not what its index says.
            CouldNotLookError: a file cannot be read.
        """
        if not a.kind.dtype:
            return self._same_value(a.shards[0], b.shards[0])
        if _boxes(a) != _boxes(b):
            return all(_equal(x, y) for x, y in self._across(a, b))
        sizes = [a.element * math.prod(shard.shape) for shard in a.shards]
        verdicts = [self._judge(x, y, size) for (x, y), size in zip(_shards(a, b), sizes, strict=True)]
        if any(verdict.equal is False for verdict in verdicts):
            return False
        for (x, y), verdict in zip(_shards(a, b), verdicts, strict=True):
            for begin, end in verdict.open:
                if not all(_equal(one, other) for one, other in self._straight(x, y, begin, end)):
                    return False
        return True

    def elements(self, a: Item, b: Item) -> "Iterator[tuple[Raw, Raw | None]]":
        """The bytes of all elements of two tensors of one kind, part by part, in the same order on both sides.

        In place of the second stands None where digests tell that it is equal to the first, which then is read alone.
        The arrays are overwritten by the next. Raises as `same`.
        """
        if _boxes(a) != _boxes(b):
            yield from self._across(a, b)
            return
        for x, y in _shards(a, b):
            size = a.element * math.prod(x.shape)
            own_a, own_b = self._a.files[x.file].digests, self._b.files[y.file].digests
            cuts = runs(own_a, x.data, own_b, y.data, size)
            if any(begin % a.element for begin, _, _ in cuts):
                cuts = [(0, size, False)]
            for begin, end, equal in cuts:
                yield from self._straight(x, y, begin, end, alone=equal)

    def _judge(self, x: Shard, y: Shard, size: int) -> Any:
        return judge(self._a.files[x.file].digests, x.data, self._b.files[y.file].digests, y.data, size)

    def _buffers(self) -> "tuple[Raw, Raw]":
        if self._space is None:
            import numpy as np  # here, so that a comparison by digests does not wait for NumPy

            self._space = np.empty(self._chunk, np.uint8), np.empty(self._chunk, np.uint8)
        return self._space

    def _straight(
        self, x: Shard, y: Shard, begin: int, end: int, *, alone: bool = False
    ) -> "Iterator[tuple[Raw, Raw | None]]":
        """A range of bytes that lies in one piece on both sides."""
        space_a, space_b = self._buffers()
        for at in range(begin, end, self._chunk):
            count = min(self._chunk, end - at)
            self._read_a.read_into(x.file, x.data + at, space_a[:count].data)
            if not alone:
                self._read_b.read_into(y.file, y.data + at, space_b[:count].data)
            self._on_bytes(count)
            yield space_a[:count], None if alone else space_b[:count]

    def _across(self, a: Item, b: Item) -> "Iterator[tuple[Raw, Raw]]":
        """Elements that lie in shards of another layout on each side."""
        space_a, space_b = self._buffers()
        element = a.element
        for side, item in ((self._a, a), (self._b, b)):
            # Then they leave a gap elsewhere, since their elements add up to the tensor's.
            if overlapping(item.shards):
                raise DamagedCheckpointError(
                    f"{side.path}: shards of {reprlib.repr(item.kind.key)} overlap; see keepstep verify"
                )
        for x, y in pairs(a.shards, b.shards):
            for piece in pieces(x, y, gap=_GAP // element, longest=self._chunk // element):
                size_a, size_b = piece.span_a * element, piece.span_b * element
                self._read_a.read_into(x.file, x.data + piece.a * element, space_a[:size_a].data)
                self._read_b.read_into(y.file, y.data + piece.b * element, space_b[:size_b].data)
                self._on_bytes(piece.elements * element)
                yield _dense(space_a, piece, piece.strides_a, element), _dense(space_b, piece, piece.strides_b, element)

    def _same_value(self, x: Shard, y: Shard) -> bool:
        """Values lie in slots that are longer than they are: behind the shorter one's bytes only zeros may follow."""
        size_a, size_b = self._payload(self._read_a, x), self._payload(self._read_b, y)
        common = min(size_a, size_b)
        if not all(_equal(one, other) for one, other in self._straight(x, y, 0, common)):
            return False
        longer, reader = (x, self._read_a) if size_a > common else (y, self._read_b)
        space, _ = self._buffers()
        for at in range(common, max(size_a, size_b), self._chunk):
            rest = space[: min(self._chunk, max(size_a, size_b) - at)]
            reader.read_into(longer.file, longer.data + at, rest.data)
            if rest.any():
                return False
        return True

    def _payload(self, reader: DataReader, shard: Shard) -> int:
        """Bytes of a value's slot: what is in front of its archive's directory, as the archive's last bytes tell."""
        (size,) = shard.shape
        end = bytearray(_END.size)
        if size >= len(end):
            reader.read_into(shard.file, shard.data + size - len(end), memoryview(end))
        signature, *_, length, begin, comment = _END.unpack(end)
        payload = size - _END.size - length - (_END64 if begin == _NONE32 else 0)
        if signature != _END_SIGNATURE or comment or payload < 0:
            raise DamagedCheckpointError(f"{self._a.path}, {self._b.path}: a value has no archive; see keepstep verify")
        return int(payload)


def _boxes(item: Item) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(shard.at, shard.shape) for shard in item.shards]


def _shards(a: Item, b: Item) -> Iterator[tuple[Shard, Shard]]:
    """The shards of one layout, without empty ones."""
    return ((x, y) for x, y in zip(a.shards, b.shards, strict=True) if 0 not in x.shape)


def _equal(a: "Raw", b: "Raw | None") -> bool:
    import numpy as np

    return b is None or np.array_equal(a, b)


def _dense(space: "Raw", piece: Piece, strides: tuple[int, ...], element: int) -> "Raw":
    """A box that was read with what lies between its rows, without that."""
    import numpy as np

    # NumPy knows 64 dimensions; those of length 1 can be told from the file's header alone.
    dims = [(length, stride) for length, stride in zip(piece.shape, strides, strict=True) if length > 1]
    shape, steps = [length for length, _ in dims], [stride * element for _, stride in dims]
    box = np.ndarray((*shape, element), np.uint8, space.data, 0, (*steps, 1))
    return np.ascontiguousarray(box).reshape(-1)
