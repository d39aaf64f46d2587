"""Compares output parts with their digests, and their positions with the input."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from keepstep.ops.outputs.look import Outputs, look
from keepstep.storage.digest import digest_file, digest_of_blocks


@dataclass(frozen=True)
class Verified:
    """What was found; all is well where there are no problems."""

    outputs: Outputs
    problems: tuple[str, ...]


def verify(folder: Path, on_bytes: Callable[[int, int], object] = lambda done, total: None) -> Verified:
    """Read every committed part once.

    Args:
        folder: of the parts.
        on_bytes: told of the progress: bytes read, and of all.

    Raises:
        CheckpointNotFoundError, CouldNotLookError, DamagedOutputsError: as of `look`.
    """
    found = look(folder)
    problems = [*(f"{name} is gone" for name in found.missing), *found.problems]
    problems += [f"{name} is missing" for name in found.absent]
    if found.complete:
        problems += [f"{name} is not in the index" for name in found.unknown]
    done = 0
    for part in found.parts:
        try:
            size, digests = digest_file(folder / part.name)
        except OSError as error:
            problems.append(f"{part.name} cannot be read: {error.strerror}")
            continue
        done += size
        on_bytes(done, found.bytes)
        if size != part.bytes:
            problems.append(f"{part.name} has {size} bytes, not {part.bytes}")
        elif digest_of_blocks(digests) != part.digest:
            problems.append(f"{part.name} has other bytes than were written")
    problems += found.coverage_problems
    return Verified(found, tuple(problems))
