"""Finds which of many items are not equal: by digests, then by reading on several threads what those leave open."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from keepstep.ops.compare import Comparer
from keepstep.ops.data_reader import DataReader
from keepstep.ops.tensor_source import Item, Side
from keepstep.storage.parallel import run_on

if TYPE_CHECKING:
    from keepstep.ops.values import ValueDifference

# Told how many bytes of how many were dealt with.
Watch = Callable[[int, int], None]
Pair = tuple[Item, Item]
Found = tuple[Item, "ValueDifference | None"]

_THREADS = 4
_FAR_THREADS = 8
# Bytes of items that one thread takes at a time, with buffers and files of its own.
_BATCH = 16 * 1024 * 1024


def find_unequal(a: Side, b: Side, both: Sequence[Pair], *, values: bool, watch: Watch) -> tuple[list[Found], int]:
    """Compare pairs of items of one kind.

    Args:
        a, b: the sides.
        both: an item of each.
        values: say by how much numbers differ.
        watch: told of the progress, by one thread at a time.

    Returns:
        What is not equal, in no order, and how many bytes were read. Raises as `Comparer.same`.
    """
    total, done, read = sum(x.kind.size for x, _ in both), 0, 0
    unequal: list[Found] = []
    lock = threading.Lock()

    def on_bytes(count: int) -> None:
        nonlocal done
        with lock:
            done += count
            watch(done, total)

    def work(batch: list[Pair]) -> None:
        nonlocal read
        with DataReader(a) as read_a, DataReader(b) as read_b:
            comparer = Comparer(a, b, read_a, read_b, on_bytes)
            found = [(x, _measure(comparer, x, y) if values else None, y) for x, y in batch]
            own = [(x, by) for x, by, y in found if (by.differing if by else not comparer.same(x, y))]
            with lock:
                unequal.extend(own)
                read += read_a.bytes_read + read_b.bytes_read

    with DataReader(a) as none_a, DataReader(b) as none_b:
        judge = Comparer(a, b, none_a, none_b)
        left = []
        for x, y in both:
            known = judge.same_by_digest(x, y)
            if known is None or (values and not known):
                left.append((x, y))
                continue
            if not known:
                unequal.append((x, None))
            on_bytes(x.kind.size)
    if left:
        is_far = a.is_far or b.is_far
        run_on(_FAR_THREADS if is_far else min(_THREADS, max(2, os.cpu_count() or 1)), _batches(left), work)
    return unequal, read


def _batches(pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
    batch: list[Pair] = []
    size = 0
    for pair in pairs:
        batch.append(pair)
        size += pair[0].kind.size
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _measure(comparer: Comparer, a: Item, b: Item) -> "ValueDifference | None":
    """By how much two tensors differ; None if their numbers are not known."""
    from keepstep.ops.numbers import decoder
    from keepstep.ops.values import Summary

    if decoder(a.kind.dtype) is None:
        return None
    summary = Summary(a.kind.dtype, a.element)
    for raw_a, raw_b in comparer.elements(a, b):
        summary.add(raw_a, raw_b)
    return summary.result()
