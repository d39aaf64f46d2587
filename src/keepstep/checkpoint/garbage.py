"""Many new objects at once: no time for the collector."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collections() -> Iterator[None]:
    """Put the cyclic garbage collector off.

    Planning makes many objects that stay, and it would look at all of them again and again: it took a third of the
    time for a hundred thousand tensors.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
