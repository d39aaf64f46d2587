"""Which parts lie in a folder of outputs, as a reader sees them at this moment."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from keepstep.errors import CheckpointNotFoundError, CouldNotLookError, KeepstepError
from keepstep.plan.coverage import coverage_of
from keepstep.plan.outputs import INDEX, SUCCESS, Part, hidden_name, in_input_order, is_part
from keepstep.plan.shards import Shard, Share, all_shards, differences
from keepstep.storage.json_file import read_json
from keepstep.storage.outputs.folder import sizes_in
from keepstep.storage.outputs.index import read_head, read_parts
from keepstep.storage.shards import shards_in


@dataclass(frozen=True)
class Outputs:
    """The committed outputs of a job.

    Attributes:
        folder, format: of the parts.
        complete: whether the job has ended.
        inputs: how many inputs the job has; None as long as it runs.
        parts: committed ones, those of failed rows too, in input order.
        missing: parts that the index names and that are gone.
        unknown: files that are called like parts, and that the index does not name.
        share: of the input, where these are the outputs of one shard.
        shards: the outputs of each shard, where these are those of all.
        absent: names of shards that have no outputs.
        problems: why the shards do not make one output.
    """

    folder: Path
    format: str
    complete: bool
    inputs: int | None
    parts: tuple[Part, ...]
    missing: tuple[str, ...]
    unknown: tuple[str, ...]
    share: Share | None = None
    shards: tuple["Outputs", ...] = ()
    absent: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def coverage_problems(self) -> list[str]:
        """Positions that no part holds, or more than one does, in words."""
        if self.shards:
            return [f"{shard.folder.name}: {text}" for shard in self.shards for text in shard.coverage_problems]
        begin = self.share.begin if self.share else 0
        return coverage_of(self.parts, None if self.inputs is None else begin + self.inputs, begin).problems

    @property
    def open_shards(self) -> list[str]:
        """Shards that have not ended or not begun, in words."""
        running = [f"{shard.folder.name} has not ended" for shard in self.shards if not shard.complete]
        return running + [f"{name} is missing" for name in self.absent]

    @property
    def rows(self) -> int:
        """Rows that are committed."""
        return sum(part.rows for part in self.parts if not part.is_errors)

    @property
    def errors(self) -> int:
        """Samples that are noted as failed."""
        return sum(part.rows for part in self.parts if part.is_errors)

    @property
    def bytes(self) -> int:
        """Of all parts."""
        return sum(part.bytes for part in self.parts)


def look(folder: Path) -> Outputs:
    """List the committed parts, those of all shards where the folder is divided into some. Jobs may be at work there.

    Raises:
        CheckpointNotFoundError: the folder holds no outputs.
        CouldNotLookError: it cannot be read.
        DamagedOutputsError: the index is none.
    """
    try:
        head = read_head(folder)
        if head is None and (shards := shards_in(folder)):
            return _look_at_all(folder, shards)
        if head is None:
            raise CheckpointNotFoundError(f"{folder} holds no outputs of an inference job (no {INDEX})")
        # In this order: what a job commits meanwhile is in the listing, and only its name can be unknown.
        listed = read_parts(folder)
        sizes = sizes_in(folder)
    except OSError as error:
        if isinstance(error, KeepstepError):
            raise
        raise CouldNotLookError(f"{folder}: {error}") from error
    success = read_json(folder / SUCCESS)
    complete = success.get("outputs") == head.id
    inputs = success.get("inputs") if complete else None
    present = [part for part in listed if part.name in sizes]
    missing = [part.name for part in listed if part.name not in sizes and hidden_name(part.name) not in sizes]
    # Between the two looks a hidden one may have got its name.
    missing = [name for name in missing if not (folder / name).exists()]
    known = {part.name for part in listed}
    unknown = sorted(name for name in sizes if is_part(name) and name not in known)
    return Outputs(
        folder,
        head.format,
        complete,
        inputs if isinstance(inputs, int) else None,
        tuple(in_input_order(present)),
        tuple(missing),
        tuple(unknown),
        head.share,
    )


def _look_at_all(folder: Path, shards: Sequence[Shard]) -> Outputs:
    """The outputs of all shards as one, with the folder of each in front of the names of its parts."""
    found = [look(folder / shard.name) for shard in shards if read_head(folder / shard.name) is not None]
    if not found:
        raise CheckpointNotFoundError(f"{folder}: no shard has outputs yet")
    begun = {Path(one.folder).name for one in found}
    absent = [shard.name for shard in all_shards(shards) if shard.name not in begun]
    complete = not absent and all(one.complete for one in found)
    problems = differences([one.share for one in found if one.share is not None])
    problems += [f"{one.folder.name} is no shard, by its index" for one in found if one.share is None]
    if len(formats := sorted({one.format for one in found})) > 1:
        problems.append(f"shards have different formats: {', '.join(formats)}")
    return Outputs(
        folder,
        found[0].format,
        complete,
        sum(one.inputs or 0 for one in found) if complete else None,
        tuple(in_input_order(replace(part, name=_in(one, part.name)) for one in found for part in one.parts)),
        tuple(_in(one, name) for one in found for name in one.missing),
        tuple(_in(one, name) for one in found if one.complete for name in one.unknown),
        shards=tuple(found),
        absent=tuple(absent),
        problems=tuple(problems),
    )


def _in(one: Outputs, name: str) -> str:
    return f"{one.folder.name}/{name}"
