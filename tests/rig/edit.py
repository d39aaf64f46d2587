"""Changes a committed checkpoint so that its digests still agree: what only a proof can find."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from keepstep.plan import layout
from keepstep.plan.manifest import FileRecord, from_text, to_text
from keepstep.storage.digest import digest_of_bytes


def edit_metadata(checkpoint: Path, change: Callable[[Any], None]) -> None:
    """Change DCP's metadata of a checkpoint, and its manifest with it."""
    path = checkpoint / layout.METADATA
    metadata = pickle.loads(path.read_bytes())
    change(metadata)
    data = pickle.dumps(metadata)
    path.write_bytes(data)
    manifest = from_text((checkpoint / layout.MANIFEST).read_text(), digest_of_bytes)
    files = {**manifest.files, layout.METADATA: FileRecord(len(data), digest_of_bytes(data))}
    (checkpoint / layout.MANIFEST).write_text(to_text(replace(manifest, files=files), digest_of_bytes))


def drop(key: str) -> Callable[[Any], None]:
    """Take a key out."""

    def change(metadata: Any) -> None:
        del metadata.state_dict_metadata[key]
        metadata.storage_data = {i: place for i, place in metadata.storage_data.items() if i.fqn != key}

    return change


def swap(first: str, second: str) -> Callable[[Any], None]:
    """Let two keys lie where the other does."""

    def change(metadata: Any) -> None:
        names = {first: second, second: first}
        metadata.storage_data = {
            replace(index, fqn=names.get(index.fqn, index.fqn)): place for index, place in metadata.storage_data.items()
        }

    return change
