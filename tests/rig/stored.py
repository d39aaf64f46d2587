"""Many small checkpoints in a store, put there at once."""

from keepstep.config.address import Address
from keepstep.plan import layout
from keepstep.plan.manifest import FileRecord, Manifest, to_text
from keepstep.storage.digest import digest_of_bytes
from keepstep.storage.parallel import run_on
from keepstep.storage.stores.opening import open_store

_FILES = {".metadata": b"pickle", "__0.index": b"index", "__0_0.distcp": b"shard", layout.RUN_RECORD: b"{}"}


def store_checkpoints(address: Address, count: int) -> None:
    """Store `save-1` to `save-<count>`, of five files each with the manifest."""
    store = open_store(address)
    records = {name: FileRecord(len(data), digest_of_bytes(data)) for name, data in _FILES.items()}

    def put(step: int) -> None:
        manifest = to_text(Manifest(step, 1, 1, ("model",), records), digest_of_bytes)
        for name, data in {**_FILES, layout.MANIFEST: manifest.encode()}.items():
            store.write(f"{layout.checkpoint_name(step)}/{name}", data)

    run_on(16, iter(range(1, count + 1)), put)
