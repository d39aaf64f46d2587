"""Which of the values in a file of somebody else's are the weights, and what they are called."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

# Where training scripts put the model's state dict into a larger one.
WRAPPERS = ("model", "state_dict", "model_state_dict")
Path = tuple[str, ...]
_SHOWN = 5


class PickingError(ValueError):
    """There are no weights, they cannot be told from other values, or two have one name."""


@dataclass(frozen=True)
class Picked:
    """The weights: name to path. `left_out` are the first parts of the paths of all else."""

    paths: dict[str, Path]
    left_out: tuple[str, ...]


def pick(leaves: Mapping[Path, bool], prefix: str | None) -> Picked:
    """Find the weights among the values of nested dicts.

    Without a prefix they are what lies under one of `WRAPPERS`, if one of these is there, and else everything. A name
    is the rest of the path, with dots between its parts.

    Args:
        leaves: the path of each value, and whether it is a tensor.
        prefix: what the paths of the weights begin with, with dots between the parts; None where that is to be found.

    Raises:
        PickingError: in one line.
    """
    chosen = _under(leaves, prefix) if prefix else _found(leaves)
    paths: dict[str, Path] = {}
    for name, path in chosen:
        if not name:
            raise PickingError("a tensor has no name")
        if name in paths:
            raise PickingError(f"two of its tensors would have the name {name}")
        paths[name] = path
    others = [name for name, path in paths.items() if not leaves[path]]
    if others:
        more = " (--weights PREFIX takes a dict of tensors that lies in it)" if len(others) < len(paths) else ""
        raise PickingError(f"it holds values that are no tensors: {shown(others)}{more}")
    if not paths:
        raise PickingError("it holds no tensors")
    taken = set(paths.values())
    return Picked(paths, tuple(dict.fromkeys(_first(path) for path in leaves if path not in taken)))


def shown(names: Collection[str]) -> str:
    """The first of some names, and how many there are besides."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(list(names)[:_SHOWN]) + more


def _under(leaves: Mapping[Path, bool], prefix: str) -> list[tuple[str, Path]]:
    start = prefix.rstrip(".") + "."
    found = [(name[len(start) :], path) for path in leaves if (name := ".".join(path)).startswith(start)]
    if not found:
        there = dict.fromkeys(_first(path) for path, is_tensor in leaves.items() if is_tensor)
        raise PickingError(f"it has nothing under {prefix!r}; there are {shown(there) or 'no tensors at all'}")
    return found


def _found(leaves: Mapping[Path, bool]) -> Sequence[tuple[str, Path]]:
    wrappers = [name for name in WRAPPERS if any(path[0] == name and len(path) > 1 for path in leaves)]
    if len(wrappers) > 1:
        raise PickingError(f"its weights may be {' or '.join(wrappers)}: say which with --weights")
    if not wrappers:
        return [(".".join(path), path) for path in leaves]
    return [(".".join(path[1:]), path) for path in leaves if path[0] == wrappers[0] and len(path) > 1]


def _first(path: Path) -> str:
    return path[0] if path else ""
