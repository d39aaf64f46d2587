"""Where a run that goes back to an earlier checkpoint goes on: a line of its own, begun once for each request."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Fork:
    """A line that was begun from a checkpoint of a run.

    Attributes:
        name: of the new line; also its folder, beside the run's.
        step: of the checkpoint.
        submission: what tells the submission of the job that asked for it from others; None where nothing does.
    """

    name: str
    step: int
    submission: str | None = None


def suffix_of(name: str) -> str:
    """What the name of a line adds to that of its run: ".fork-1"; empty where it says nothing."""
    found = re.search(r"(\.fork-[1-9][0-9]*)+$", name)
    return found[0] if found else ""


def choose_fork(
    run: str,
    step: int,
    submission: str | None,
    known: Sequence[Fork],
    *,
    finished: Collection[str],
    taken: Collection[str],
) -> tuple[Fork, bool]:
    """The line that a request to go back to `step` means: the one that it has begun already, or a new one.

    Args:
        run: the name of the run.
        step: of the checkpoint to go back to.
        submission: of this start.
        known: lines that were begun from this run, oldest first.
        finished: names of those that have come to their end.
        taken: names that lie beside the run's folder.

    Returns:
        The line, and whether it is new.
    """
    for fork in reversed(known):
        if fork.step != step or fork.submission != submission:
            continue
        # A scheduler runs the same command line again after every reclaim; a person who asks again wants another line.
        if submission is not None or fork.name not in finished:
            return fork, False
    used = {fork.name for fork in known} | set(taken)
    number = 1
    while f"{run}.fork-{number}" in used:
        number += 1
    return Fork(f"{run}.fork-{number}", step, submission), True
