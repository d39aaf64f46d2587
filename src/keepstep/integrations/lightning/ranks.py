"""Decisions that one rank takes for all, over Lightning's own strategy."""

from collections.abc import Callable
from typing import Any, TypeVar

from keepstep.errors import KeepstepError

T = TypeVar("T")


def on_rank_zero(strategy: Any, work: Callable[[], T]) -> T:
    """Run something on rank 0, and give what it returns to every rank, or raise what it raises on every rank.

    Collective once the ranks have met; before that every rank is alone.
    """
    outcome: tuple[Any, KeepstepError | None] = (None, None)
    if strategy.is_global_zero:
        try:
            outcome = (work(), None)
        except KeepstepError as error:
            outcome = (None, error)
    value, failure = strategy.broadcast(outcome)
    if failure is not None:
        raise failure
    result: T = value
    return result
