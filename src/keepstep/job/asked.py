"""What the command line asks of a job beside what its configuration says."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Asked:
    """Of one start.

    Attributes:
        fresh: set the run aside that is there; a request that was acted on already does nothing.
        from_step: go back to this checkpoint and train another line of the run from there; acted on once as well.
        accept: differences to the checkpoint that are accepted: "field=value", or "field" for what it is now.
        rehash: read files of data and base weights again whose digests are remembered.
    """

    fresh: bool = False
    from_step: int | None = None
    accept: tuple[str, ...] = ()
    rehash: bool = False


NOTHING = Asked()
