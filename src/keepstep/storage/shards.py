"""Folders of shards, beside each other."""

from pathlib import Path

from keepstep.errors import ConfigError
from keepstep.plan.shards import Shard, clash, shard_of


def refuse_other_division(folder: Path, shard: Shard | None) -> None:
    """See that nobody has divided the job in another way, whose rows would be there a second time.

    Args:
        folder: of all shards; of the job itself where it takes the whole input.
        shard: of this job; None where it takes the whole input.

    Raises:
        ConfigError: somebody has.
    """
    if not folder.is_dir():
        return
    other = clash((path.name for path in folder.iterdir()), shard)
    if other is not None:
        now = f"{shard.count} shards" if shard else "one job for the whole input"
        raise ConfigError(
            f"inference.shard: {folder} holds {other}, and this would be {now}; go on with the division that the job "
            "was begun with, or take another save_dir and another outputs.to"
        )


def shards_in(folder: Path) -> list[Shard]:
    """The shards that have a folder in this one, in their order."""
    found = [shard for path in folder.iterdir() if (shard := shard_of(path.name)) and path.is_dir()]
    return sorted(found)
