"""Verifies checkpoints at an address: every byte is read there and compared with its digest."""

from collections.abc import Callable, Collection, Iterator

from keepstep.config.address import Address
from keepstep.errors import CheckpointNotFoundError, CouldNotLookError
from keepstep.ops.mirror.tally import Tally
from keepstep.ops.place import is_checkpoint, open_stored, survey_address
from keepstep.ops.verify import Verified
from keepstep.plan.resume import Condition
from keepstep.storage.parallel import run_on
from keepstep.storage.stored import StoredCheckpoint
from keepstep.storage.stores.meter import Meter
from keepstep.storage.transfer import verify_stored

Watch = Callable[[int, int], None]

# Files that are read at once, each in several pieces.
_FILES = 4


def verify_address(address: Address, watch: Watch = lambda done, total: None) -> Iterator[Verified]:
    """Verify one checkpoint or all of a run, one result after the other.

    Args:
        address: of a checkpoint or a run.
        watch: told how many bytes of how many were read.

    Raises:
        CheckpointNotFoundError: there is none.
        CouldNotLookError: the store cannot be asked. That is no damage.
    """
    found = (open_stored(address),) if is_checkpoint(address) else survey_address(address).checkpoints
    if not found:
        raise CheckpointNotFoundError(f"{address}: no checkpoint there")
    meter = Tally(sum(one.manifest.size for one in found if one.manifest), watch).meter()
    for one in found:
        yield verify_found(address if is_checkpoint(address) else address.joined(one.files.name), one, meter)


def verify_found(address: Address, found: StoredCheckpoint, meter: Meter) -> Verified:
    """Verify one checkpoint. Raises as `verify_address`."""
    manifest, step = found.manifest, found.found.step
    if manifest is None or found.found.condition is not Condition.COMPLETE:
        return Verified(step, str(address), found.found.condition.value, 0, (found.found.problem,))
    wrong: list[tuple[str, str]] = []

    def read(names: Collection[str]) -> None:
        wrong.extend(verify_stored(found.files, manifest, names, meter))

    try:
        run_on(min(_FILES, len(manifest.files)), ([name] for name in sorted(manifest.files)), read)
    except OSError as error:
        raise CouldNotLookError(f"cannot read {address}: {error.strerror or error}") from error
    condition = Condition.DAMAGED if wrong else Condition.COMPLETE
    problems = tuple(f"{name}: {problem}" for name, problem in sorted(wrong))
    return Verified(step, str(address), condition.value, manifest.size, problems)
