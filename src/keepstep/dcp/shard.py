"""How one rank's shard file is laid out: where each item lies, and what frames it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from keepstep.dcp.framing import ELEMENT, Frame, tensor_frame, tree_frame
from keepstep.dcp.items import LARGE, Item
from keepstep.plan import layout
from keepstep.storage.buffers import PAGE
from keepstep.storage.index import IndexItem, header_of


@dataclass(frozen=True)
class Placed:
    """An item in the file: its archive's offset and length, and where in the file its payload begins, of which size."""

    item: Item
    offset: int
    length: int
    data: int
    size: int
    frame: Frame


@dataclass(frozen=True)
class Shard:
    """The layout of a rank's file. Small things come first and lie packed; each large one begins at a page.

    Attributes:
        rank: whose.
        placed: all items, in the order of the file.
        packed: bytes of the part that holds the small ones, whole pages.
        size: bytes of the file, whole pages.
        aliases: other names of a key.
    """

    rank: int
    placed: tuple[Placed, ...]
    packed: int
    size: int
    aliases: Mapping[str, Sequence[str]]

    @property
    def name(self) -> str:
        return layout.shard_name(self.rank)

    @cached_property
    def small(self) -> list[Placed]:
        """What lies in the packed part."""
        return [one for one in self.placed if one.offset < self.packed]

    @cached_property
    def large(self) -> list[Placed]:
        """What lies behind it."""
        return [one for one in self.placed if one.offset >= self.packed]

    @cached_property
    def trees(self) -> list[Placed]:
        """The pickled ones."""
        return [one for one in self.placed if one.item.dtype is None]

    @cached_property
    def index_header(self) -> bytes:
        """The part of the index that does not change from save to save."""
        items = [self._indexed(one, key) for one in self.placed for key in self.names(one)]
        return header_of([(self.name, self.size, items)])

    def names(self, placed: Placed) -> list[str]:
        """All names of an item."""
        return [placed.item.key, *self.aliases.get(placed.item.key, ())]

    def _indexed(self, placed: Placed, key: str) -> IndexItem:
        item = placed.item
        dtype = str(item.dtype).removeprefix("torch.") if item.dtype is not None else ""
        return IndexItem(key, placed.offset, placed.length, dtype, item.shape, item.at, placed.data)


def lay_out(
    rank: int, items: Sequence[Item], pickles: Mapping[str, bytes], aliases: Mapping[str, Sequence[str]]
) -> Shard:
    """Lay out a file.

    Args:
        rank: whose file.
        items: what it holds.
        pickles: of each tree what it is now. Its slot is larger, so that the layout outlasts changes of length.
        aliases: other names of a key.
    """
    sized = [(item, item.size if item.dtype is not None else slot_for(len(pickles[item.key]))) for item in items]
    placed, offset = [], 0
    for item, size in (one for one in sized if one[1] < LARGE):
        placed.append(_place(item, size, offset))
        offset = _up(placed[-1].offset + placed[-1].length, ELEMENT)
    packed = _up(offset, PAGE)
    end = packed
    for item, size in (one for one in sized if one[1] >= LARGE):
        head = len(_frame(item, size).head)
        placed.append(_place(item, size, _up(end + head, PAGE) - head))
        end = placed[-1].offset + placed[-1].length
    return Shard(rank, tuple(placed), packed, _up(end, PAGE), aliases)


def slot_for(length: int) -> int:
    """The bytes that are kept for a pickle of this length."""
    return _up(length + length // 8 + ELEMENT, ELEMENT)


def _place(item: Item, size: int, offset: int) -> Placed:
    frame = _frame(item, size)
    data = offset + len(frame.head)
    return Placed(item, offset, len(frame.head) + size + len(frame.tail), data, size, frame)


def _frame(item: Item, size: int) -> Frame:
    return tree_frame(size) if item.dtype is None else tensor_frame(item.dtype, item.shape)


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
