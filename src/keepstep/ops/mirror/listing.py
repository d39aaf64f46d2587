"""Lists what lies at an address: one listing of names, and the manifest of each checkpoint."""

import time

from keepstep.config.address import Address
from keepstep.errors import CouldNotLookError
from keepstep.ops.listing import ListedCheckpoint, Listing
from keepstep.ops.place import is_checkpoint, survey_address
from keepstep.plan import layout
from keepstep.storage.stored import StoredCheckpoint


def list_stored(address: Address) -> Listing:
    """List checkpoints, oldest first, complete or not. `created_at` is when the manifest was stored there.

    Raises:
        CouldNotLookError: the store cannot be asked. That is never taken for an empty one.
    """
    found = survey_address(address)
    if is_checkpoint(address) and layout.MANIFEST in found.foreign:
        raise CouldNotLookError(f"{address} is one checkpoint; `keepstep show` describes it")
    return Listing(
        str(address), tuple(_listed(address, one) for one in found.checkpoints), (), found.foreign, found.runs
    )


def _listed(address: Address, checkpoint: StoredCheckpoint) -> ListedCheckpoint:
    manifest, found = checkpoint.manifest, checkpoint.found
    return ListedCheckpoint(
        step=found.step,
        path=str(address.joined(checkpoint.files.name)),
        condition=found.condition.value,
        problem=found.problem,
        size=manifest.size if manifest else None,
        world_size=manifest.world_size if manifest else None,
        attempt=manifest.attempt if manifest else None,
        created_at=_text_of(checkpoint.modified) if checkpoint.modified else None,
    )


def _text_of(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
