"""One rank's failure is every rank's failure: all raise the same error, which names the rank."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from keepstep.dist.world import World, host_name
from keepstep.errors import KeepstepError, RankFailedError, RankLostError

T = TypeVar("T")


@dataclass(frozen=True)
class Failure:
    """What went wrong on one rank, as it is told to the others."""

    text: str
    host: str
    exit_code: int


@contextmanager
def agreed(world: World, phase: str, error_type: type[RankFailedError] = RankFailedError) -> Iterator[None]:
    """Run the body on every rank; leave together, or raise the same error on every rank.

    The body must hold no collective that another rank's failure could leave waiting.

    Args:
        world: the ranks.
        phase: what the body does, for the message: "writing shards".
        error_type: what to raise.

    Raises:
        RankFailedError: (`error_type`) the body raised on at least one rank. In a world of one an error of keepstep's
            own is raised as it is.
    """
    problem: Exception | None = None
    try:
        yield
    except Exception as error:  # noqa: BLE001 - it is raised below, on all ranks, with its cause
        problem = error
    with _named(phase):
        failures = world.gather(failure_of(problem))
    _settle(failures, problem, world, phase, error_type)


def told_by_all(
    world: World, phase: str, work: Callable[[], T], error_type: type[RankFailedError] = RankFailedError
) -> list[T]:
    """Run `work` on every rank and tell all what each got; errors as of `agreed`. One meeting does for both."""
    value, problem = _tried(work)
    with _named(phase):
        told = world.gather((failure_of(problem), value))
    _settle([failure for failure, _ in told], problem, world, phase, error_type)
    return [value for _, value in told]  # type: ignore[misc]


def told_to_main(
    world: World, phase: str, work: Callable[[], T], error_type: type[RankFailedError] = RankFailedError
) -> list[T]:
    """Run `work` on every rank and tell the main process what each got; others get an empty list. Errors as before."""
    value, problem = _tried(work)
    with _named(phase):
        told = world.to_main((failure_of(problem), value))
        failures = world.broadcast([failure for failure, _ in told])
    _settle(failures, problem, world, phase, error_type)
    return [value for _, value in told]  # type: ignore[misc]


@contextmanager
def _named(phase: str) -> Iterator[None]:
    """Say in which phase a rank was lost."""
    try:
        yield
    except RankLostError as lost:
        raise RankLostError(f"{phase} failed: {lost}", rank=lost.rank, phase=phase) from lost


def _tried(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return work(), None
    except Exception as error:  # noqa: BLE001 - it is raised on all ranks, with its cause
        return None, error


def failure_of(problem: BaseException | None) -> Failure | None:
    """An error in the form in which others hear of it."""
    if problem is None:
        return None
    text = str(problem) if isinstance(problem, KeepstepError) else f"{type(problem).__name__}: {problem}"
    return Failure(text, host_name(), getattr(problem, "exit_code", 1))


def shared_error(
    failures: Sequence[Failure | None], phase: str, error_type: type[RankFailedError]
) -> RankFailedError | None:
    """The one error that all ranks raise, given what each has to say. None when no rank failed."""
    failed = [(rank, failure) for rank, failure in enumerate(failures) if failure is not None]
    if not failed:
        return None
    rank, first = failed[0]
    where = f" on rank {rank} of {len(failures)} ({first.host})" if len(failures) > 1 else ""
    others = f"; {len(failed) - 1} more ranks failed" if len(failed) > 1 else ""
    shared = error_type(f"{phase} failed{where}: {first.text}{others}", rank=rank, phase=phase)
    shared.exit_code = first.exit_code
    return shared


def _settle(
    failures: Sequence[Failure | None],
    problem: Exception | None,
    world: World,
    phase: str,
    error_type: type[RankFailedError],
) -> None:
    shared = shared_error(failures, phase, error_type)
    if shared is None:
        return
    is_own = isinstance(problem, KeepstepError) and not isinstance(problem, RankFailedError)
    if problem is not None and is_own and all(failure is not None for failure in failures):
        raise problem
    raise shared from problem
