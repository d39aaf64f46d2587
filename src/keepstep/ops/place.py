"""What an argument of a command means: a path of this machine, or an address of storage far away."""

from pathlib import Path

from keepstep.config.address import Address, is_address, parse_address
from keepstep.errors import CheckpointNotFoundError, ConfigError, CouldNotLookError
from keepstep.plan import layout
from keepstep.plan.resume import Condition
from keepstep.storage.stored import StoredCheckpoint, StoredSurvey, inspect_stored, open_by_manifest, survey_store
from keepstep.storage.stores.base import Store
from keepstep.storage.stores.opening import open_store


def place_of(text: str) -> Path | Address:
    """A path, or an address. `file://` is a path for whoever reads.

    Raises:
        ConfigError: it is an address that does not work.
    """
    if not is_address(text):
        return Path(text)
    address = parse_address(text)
    return Path(address.path) if address.scheme == "file" else address


def address_of(text: str, *, to_write: bool) -> Address:
    """The address of a mirror.

    Raises:
        ConfigError: it is none, or cannot be written where that is wanted.
    """
    address = parse_address(text)
    if to_write and address.is_read_only:
        raise ConfigError(f"{address}: addresses of {address.scheme} can only be read; give that of the storage itself")
    return address


def is_checkpoint(address: Address) -> bool:
    """Whether an address ends in the name of a checkpoint."""
    return layout.any_step_of(address.name) is not None


def store_of(checkpoint: Address) -> tuple[Store, str]:
    """The store at the run of a checkpoint, and the checkpoint's name in it."""
    return open_store(checkpoint.parent), checkpoint.name


def open_stored(address: Address) -> StoredCheckpoint:
    """Look at one checkpoint at an address.

    Raises:
        CheckpointNotFoundError: it is no address of a checkpoint, or nothing is there.
        CouldNotLookError: the store cannot be asked.
    """
    if not is_checkpoint(address):
        raise CheckpointNotFoundError(
            f"{address}: not the address of a checkpoint; it ends in /save-<step> or /checkpoint-<step>"
        )
    if address.is_read_only:
        found = open_by_manifest(open_store(address))
        is_there = found.manifest is not None or found.found.condition is not Condition.INCOMPLETE
    else:
        found = inspect_stored(*store_of(address))
        is_there = bool(found.sizes)
    if not is_there:
        raise CheckpointNotFoundError(f"{address}: nothing is there; keepstep ls {address.parent} lists what is")
    return found


def survey_address(address: Address) -> StoredSurvey:
    """Look at all that lies below an address.

    Raises:
        CouldNotLookError: the store cannot be asked, or tells no names.
    """
    if address.is_read_only:
        raise CouldNotLookError(
            f"{address} cannot be listed: a web server tells no names. Give the address of one checkpoint "
            "(.../save-<step>) to show, verify, diff or pull"
        )
    return survey_store(open_store(address))
