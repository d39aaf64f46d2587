"""Byte models by counting: what the example's model has to beat."""

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


def bigram_bits(train: Bytes, held_out: Bytes) -> float:
    """Bits per byte under add-one counts of byte pairs."""
    counts = _counts(train, 2) + 1.0
    bits = -np.log2(counts / counts.sum(axis=1, keepdims=True))
    return float(bits[held_out[:-1], held_out[1:]].mean())


def trigram_bits(train: Bytes, held_out: Bytes) -> float:
    """Bits per byte under byte triples, interpolated with pairs and single bytes by the rule of Witten and Bell (1991):

    p(x | c) = (n(c, x) + k(c) * p(x | shorter c)) / (n(c) + k(c)), where k(c) counts the different bytes seen after c.
    """
    single = np.bincount(train, minlength=256) + 1.0
    p = (single / single.sum())[held_out[2:]]
    pair_context = held_out[1:-1].astype(np.int64)
    for order, context in ((2, pair_context), (3, pair_context + 256 * held_out[:-2].astype(np.int64))):
        counts = _counts(train, order)
        kinds, total = (counts > 0).sum(axis=1)[context], counts.sum(axis=1)[context]
        p = np.where(total > 0, (counts[context, held_out[2:]] + kinds * p) / np.maximum(total + kinds, 1), p)
    return float(-np.log2(p).mean())


def _counts(train: Bytes, order: int) -> NDArray[np.int64]:
    """How often each byte follows each context of order - 1 bytes: (256 ** (order - 1), 256)."""
    size = len(train) - order + 1
    code = np.zeros(size, dtype=np.int64)
    for place in range(order):
        code = code * 256 + train[place : place + size]
    return np.bincount(code, minlength=256**order).reshape(-1, 256)
