"""The second place of the newest checkpoint on the Hub, where `transformers` and its users look for it."""

from collections.abc import Iterable

from keepstep.plan import layout

LAST = "last-checkpoint"


def checkpoint_of(name: str) -> str | None:
    """The path of the checkpoint that holds a file; None where it is in none."""
    parts = name.split("/")
    for count in range(1, len(parts)):
        if layout.any_step_of(parts[count - 1]) is not None:
            return "/".join(parts[:count])
    return None


def parent_of(checkpoint: str) -> str:
    """The folder that a checkpoint lies in."""
    return checkpoint.rpartition("/")[0]


def place_of(checkpoint: str) -> str:
    """Where the copy of a checkpoint lies: beside it."""
    parent = parent_of(checkpoint)
    return f"{parent}/{LAST}" if parent else LAST


def is_newest(checkpoint: str, names: Iterable[str]) -> bool:
    """Whether none of these files belongs to a checkpoint beside this one that has a higher step."""
    parent = parent_of(checkpoint)
    beside = {one for name in names if (one := checkpoint_of(name)) is not None and parent_of(one) == parent}
    own = layout.any_step_of(checkpoint.rpartition("/")[2]) or 0
    return all((layout.any_step_of(one.rpartition("/")[2]) or 0) <= own for one in beside)


def copies(names: Iterable[str], checkpoint: str) -> dict[str, str]:
    """The names of the copies of a checkpoint's files, by the names of the files. Others have none."""
    place = place_of(checkpoint)
    return {name: place + name[len(checkpoint) :] for name in names if name.startswith(f"{checkpoint}/")}


def is_copy(name: str) -> bool:
    """Whether a file belongs to a copy."""
    return LAST in name.split("/")[:-1]
