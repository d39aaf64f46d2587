"""Which parts lie in a folder of outputs, as a reader sees them at this moment."""

from dataclasses import dataclass
from pathlib import Path

from keepstep.errors import CheckpointNotFoundError, CouldNotLookError
from keepstep.plan.outputs import INDEX, SUCCESS, Part, hidden_name, in_input_order, is_part
from keepstep.storage.json_file import read_json
from keepstep.storage.outputs.folder import sizes_in
from keepstep.storage.outputs.index import read_head, read_parts


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
    """

    folder: Path
    format: str
    complete: bool
    inputs: int | None
    parts: tuple[Part, ...]
    missing: tuple[str, ...]
    unknown: tuple[str, ...]

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
    """List the committed parts. A job may be at work there.

    Raises:
        CheckpointNotFoundError: the folder holds no outputs.
        CouldNotLookError: it cannot be read.
        DamagedOutputsError: the index is none.
    """
    try:
        head = read_head(folder)
        if head is None:
            raise CheckpointNotFoundError(f"{folder} holds no outputs of an inference job (no {INDEX})")
        # In this order: what a job commits meanwhile is in the listing, and only its name can be unknown.
        listed = read_parts(folder)
        sizes = sizes_in(folder)
    except OSError as error:
        if isinstance(error, CheckpointNotFoundError):
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
    )
