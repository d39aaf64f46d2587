"""Tells whether a data set is the same as before. No sample is ever taken from it."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from keepstep.errors import ConfigError
from keepstep.provenance.walk import NotTellableError, Walk, attributes_of
from keepstep.storage.content import FileDigests

UNKNOWN = "unknown"
_DECLARED = "declared:"
_MAX_PARTS = 50
_WHOLE = "content"


@dataclass(frozen=True)
class Fingerprint:
    """What identifies a data set.

    Attributes:
        value: SHA-256 (hex) over the digests of its parts, "declared:<text>", or "unknown".
        parts: digests (16 hex digits) of what it holds, by name, so that it can be told what has changed.
        reason: why it is unknown.
    """

    value: str
    parts: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""


def fingerprint(dataset: Any, files: FileDigests) -> Fingerprint:
    """Identify a data set: by what it declares, else by what it holds.

    A data set declares itself by an attribute or method `fingerprint` (a text that changes with the data), or names
    its files with an attribute or method `data_files`. Of any other the content is digested: rows in memory, arrays,
    Arrow tables, and files that its attributes name. Places are no part of it, nor is code.

    Args:
        dataset: any data set, map-style or a stream.
        files: digests of files.

    Raises:
        ConfigError: `fingerprint` or `data_files` is not what it should be.
        OSError: a file of the data set cannot be read.
    """
    declared = _declaration(dataset, "fingerprint")
    if declared is not None:
        if not isinstance(declared, str) or not declared:
            raise ConfigError(f"fingerprint of the data set: must be a text, not a {type(declared).__name__}")
        return Fingerprint(_DECLARED + declared)
    named = _declaration(dataset, "data_files")
    if named is not None:
        return _of_files(named, files)
    try:
        return _of_content(dataset, files)
    except NotTellableError as error:
        return Fingerprint(UNKNOWN, reason=str(error))


def _declaration(dataset: Any, name: str) -> Any:
    # Hugging Face's own `_fingerprint` changes with the code of a transformation, and between processes at times.
    found = getattr(dataset, name, None)
    return found() if callable(found) else found


def _of_files(named: Any, files: FileDigests) -> Fingerprint:
    paths = [named] if isinstance(named, str | os.PathLike) else list(named) if isinstance(named, Iterable) else []
    if not paths or not all(isinstance(path, str | os.PathLike) for path in paths):
        raise ConfigError("data_files of the data set: must be paths of files, one or more")
    walk = Walk(files)
    walk.add_files([os.fspath(path) for path in paths])
    return _sealed({"data_files": walk})


def _of_content(dataset: Any, files: FileDigests) -> Fingerprint:
    attributes = attributes_of(dataset) if _is_plain_object(dataset) else None
    walks: dict[str, Walk] = {}
    if attributes is None:
        walks[_WHOLE] = Walk(files)
        walks[_WHOLE].add(dataset, "data set")
    else:
        for name, value in attributes.items():
            walks[name] = Walk(files)
            walks[name].add_attribute(name, value, name)
    folder = next((walk.saw_folder for walk in walks.values() if walk.saw_folder), "")
    if folder and not any(walk.saw_content for walk in walks.values()):
        raise NotTellableError(f"it reads from the folder {folder}, and does not say which files")
    return _sealed(walks)


def _is_plain_object(dataset: Any) -> bool:
    """Whether a data set is an object of a user's, or of torch's, whose attributes say what it holds."""
    package = type(dataset).__module__.partition(".")[0]
    is_known = package in ("builtins", "collections", "numpy", "datasets", "pandas", "pyarrow", "polars")
    return not is_known and not hasattr(dataset, "__next__") and bool(attributes_of(dataset))


def _sealed(walks: Mapping[str, Walk]) -> Fingerprint:
    digests = {name: walk.digest().hex() for name, walk in walks.items()}
    text = "\n".join(f"{name} {digest}" for name, digest in digests.items())
    shown = {name: digest[:16] for name, digest in list(digests.items())[:_MAX_PARTS]}
    return Fingerprint(hashlib.sha256(text.encode()).hexdigest(), shown)
