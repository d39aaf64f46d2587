"""Copies committed output parts to an address, so that a reader there sees committed rows only as well."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from keepstep.config.address import Address
from keepstep.errors import ConfigError, DamagedOutputsError, MirrorError
from keepstep.ops.outputs.look import Outputs, look
from keepstep.plan.outputs import SUCCESS, is_part
from keepstep.storage.digest import digest_file, digest_of_blocks
from keepstep.storage.stores.base import ChangedFileError, Store, Upload
from keepstep.storage.stores.meter import Meter
from keepstep.storage.stores.opening import open_store


@dataclass(frozen=True)
class Pushed:
    """What was copied now: parts and bytes; and whether the job has ended, and the address says so."""

    address: str
    parts: int
    bytes: int
    complete: bool


def push(folder: Path, address: Address, watch: Callable[[int, int], object] = lambda done, total: None) -> Pushed:
    """Copy the committed parts that are not there yet; of a job that has ended the final manifest, last.

    Args:
        folder: of the parts; a job may be at work there.
        address: where they go.
        watch: told of the progress: bytes sent, and of all.

    Raises:
        CheckpointNotFoundError, CouldNotLookError: as of `look`.
        ConfigError: parts of another job lie there, or the folder is that of several shards.
        DamagedOutputsError: a part is gone, or not as it was written.
        MirrorError: the address cannot be asked, or refuses.
    """
    found = look(folder)
    if found.shards:
        raise ConfigError(
            f"{folder} holds shards; push each to an address of its own: {found.shards[0].folder}, ..., or what "
            "`keepstep outputs merge` makes of them"
        )
    if found.missing:
        raise DamagedOutputsError(f"{folder}: {found.missing[0]} is gone; `keepstep outputs verify` says more")
    store = open_store(address)
    try:
        return _push(found, store, watch)
    except ChangedFileError as error:
        raise DamagedOutputsError(f"{folder}: {error}; `keepstep outputs verify` says more") from error
    except OSError as error:
        raise MirrorError(f"{store.address}: {error}; the same command goes on") from error


def _push(found: Outputs, store: Store, watch: Callable[[int, int], object]) -> Pushed:
    there = {one.name: one.size for one in store.list()}
    known = {part.name for part in found.parts}
    if foreign := sorted(name for name in there if is_part(name) and name not in known):
        raise ConfigError(f"{store.address} holds parts of another job ({foreign[0]}); take another address")
    uploads = [
        Upload(part.name, found.folder / part.name, part.bytes, part.digest)
        for part in found.parts
        if there.get(part.name) != part.bytes
    ]
    parts, total = len(uploads), sum(upload.size for upload in uploads)
    if found.complete:
        size, digests = digest_file(found.folder / SUCCESS)
        if not uploads and there.get(SUCCESS) == size:
            return Pushed(store.address, 0, 0, True)
        uploads.append(Upload(SUCCESS, found.folder / SUCCESS, size, digest_of_blocks(digests)))
    if uploads:
        meter = Meter(on_bytes=lambda count: watch(meter.total, total))
        store.put(uploads[:-1], uploads[-1], meter)
    return Pushed(store.address, parts, total, found.complete)
