"""Puts something in the place of an object's method for a while."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(holder: Any, name: str, value: Any) -> Iterator[None]:
    """While the body runs, this object, and no other of its class, has `value` under that name."""
    own = vars(holder)
    had, before = name in own, own.get(name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        if had:
            setattr(holder, name, before)
        else:
            delattr(holder, name)
