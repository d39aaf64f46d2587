"""One rank's failure is every rank's failure: all raise the same error, which names the rank."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from keepstep.dist.world import World, host_name
from keepstep.errors import KeepstepError, RankFailedError


@dataclass(frozen=True)
class _Failure:
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
    code = getattr(problem, "exit_code", 1)
    failure = None if problem is None else _Failure(_describe(problem), host_name(), code)
    failures = [(rank, found) for rank, found in enumerate(world.gather(failure)) if found is not None]
    if not failures:
        return
    if isinstance(problem, KeepstepError) and not isinstance(problem, RankFailedError) and len(failures) == world.size:
        raise problem
    rank, first = failures[0]
    where = f" on rank {rank} of {world.size} ({first.host})" if world.size > 1 else ""
    others = f"; {len(failures) - 1} more ranks failed" if len(failures) > 1 else ""
    shared = error_type(f"{phase} failed{where}: {first.text}{others}", rank=rank, phase=phase)
    shared.exit_code = first.exit_code
    raise shared from problem


def _describe(error: Exception) -> str:
    if isinstance(error, KeepstepError):
        return str(error)
    return f"{type(error).__name__}: {error}"
