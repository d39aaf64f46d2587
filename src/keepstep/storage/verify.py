"""Compares the bytes of a checkpoint with its digests, and says which tensor a difference hits."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from keepstep.errors import CouldNotLookError
from keepstep.plan.manifest import Manifest
from keepstep.storage.digest import DIGEST_SIZE, digest_file, digest_of_blocks
from keepstep.storage.index import IndexFormatError, from_bytes

_SHOWN = 3


@dataclass(frozen=True)
class Damage:
    """One file that is not as it was written. `problem` says what it holds there where that is known (`keys`)."""

    file: str
    problem: str
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.file}: {self.problem}"


def verify_files(folder: Path, manifest: Manifest, names: Collection[str]) -> list[Damage]:
    """Read these files of a checkpoint and compare every block.

    Raises:
        CouldNotLookError: a file cannot be read. That is no damage: the disk or the network may be at fault.
    """
    damage = []
    for name in names:
        record = manifest.files[name]
        try:
            size, digests = digest_file(folder / name)
        except FileNotFoundError:
            damage.append(Damage(name, "it is missing"))
            continue
        except OSError as error:
            raise CouldNotLookError(f"cannot read {folder / name}: {error}") from error
        if size != record.size:
            damage.append(Damage(name, f"{size} bytes, not {record.size}"))
        elif digest_of_blocks(digests) != record.digest:
            damage.append(Damage(name, f"its content has changed{_where(folder, name, digests)}"))
    return damage


def _where(folder: Path, name: str, digests: bytes) -> str:
    """Which tensors the changed blocks hold, as far as an undamaged index tells."""
    if not name.endswith(".distcp"):
        return ""
    rank = name.removeprefix("__").split("_")[0]
    try:
        files = from_bytes((folder / f"__{rank}.index").read_bytes())
    except (OSError, IndexFormatError):
        return ""
    for file in files:
        if file.name != name or len(file.digests) != len(digests):
            continue
        changed = [
            block
            for block in range(len(digests) // DIGEST_SIZE)
            if digests[block * DIGEST_SIZE :][:DIGEST_SIZE] != file.digests[block * DIGEST_SIZE :][:DIGEST_SIZE]
        ]
        keys = sorted({key for block in changed for key in file.items_at(block)})
        more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
        return f" in {len(changed)} blocks ({', '.join(keys[:_SHOWN])}{more})"
    return ""
