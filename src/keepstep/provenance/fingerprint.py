"""Tells whether a data set is the same as before. No sample is ever taken from it."""

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from keepstep.errors import ConfigError
from keepstep.plan.guards import DECLARED, UNKNOWN
from keepstep.provenance.attributes import attributes_of, package_of
from keepstep.provenance.paths import common_folder
from keepstep.provenance.secrets import masked_text
from keepstep.provenance.special import NotTellableError
from keepstep.provenance.walk import Walk, declaration, folders_in
from keepstep.storage.content import FileDigests

_MAX_PARTS = 50
_MAX_FILES = 200
_WHOLE = "content"
_KNOWN = frozenset({"builtins", "collections", "numpy", "datasets", "pandas", "pyarrow", "polars"})
_CONTAINERS = (list, tuple, dict, np.ndarray, torch.Tensor)
# Raised when the rules change: digests of other rules are not compared.
RULES = 1


@dataclass(frozen=True)
class Fingerprint:
    """What identifies a data set.

    Attributes:
        value: SHA-256 (hex) over the digests of its parts, "declared:<text>", or "unknown".
        parts: digests (16 hex digits) of what it holds, by name, so that it can be told what has changed.
        reason: why it, or a part of it, is unknown.
    """

    value: str
    parts: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""


def fingerprint(dataset: Any, files: FileDigests) -> Fingerprint:
    """Identify a data set: by what it declares, else by what it holds.

    A data set declares itself by an attribute or method `fingerprint` (a text that changes with the data), or names
    its files with an attribute or method `data_files`; what else makes its samples what they are, such as a choice of
    columns, may be said as a text by `data_settings`. Of any other the content is digested: rows in memory, arrays,
    Arrow tables, and files that its attributes name. Places are no part of it, nor is code.

    Args:
        dataset: any data set, map-style or a stream.
        files: digests of files.

    Raises:
        ConfigError: `fingerprint` or `data_files` is not what it should be, or fails.
        OSError: a file of the data set cannot be read.
    """
    declared = _declared(dataset, "fingerprint")
    if declared is not None:
        if not isinstance(declared, str) or not declared:
            raise ConfigError(f"fingerprint of the data set: must be a text, not a {type(declared).__name__}")
        return Fingerprint(DECLARED + masked_text(declared))
    named = _declared(dataset, "data_files")
    if named is not None:
        return _of_files(named, _declared(dataset, "data_settings"), files)
    return _of_content(dataset, files)


def _declared(dataset: Any, name: str) -> Any:
    try:
        return declaration(dataset, name)
    # It is a user's code: whatever it raises means the same here, and the cause is kept.
    except Exception as error:
        raise ConfigError(f"{name} of the data set failed: {type(error).__name__}: {error}") from error


def _of_files(named: Any, settings: Any, files: FileDigests) -> Fingerprint:
    paths = [named] if isinstance(named, str | os.PathLike) else list(named) if isinstance(named, Iterable) else []
    if not paths or not all(isinstance(path, str | os.PathLike) for path in paths):
        raise ConfigError("data_files of the data set: must be paths of files, one or more")
    walks = {"data_files": Walk(files)}
    walks["data_files"].add_files([os.fspath(path) for path in paths])
    if settings is not None:
        walks["data_settings"] = Walk(files)
        walks["data_settings"].tag("settings", settings)
    sealed = _sealed(walks, {})
    return replace(sealed, parts={**sealed.parts, **_each_file([os.path.abspath(path) for path in paths], files)})


def _each_file(paths: Sequence[str], files: FileDigests) -> dict[str, str]:
    """Digests by name, so that a file that was changed can be named; nothing where that would be a long list."""
    if len(paths) > _MAX_FILES:
        return {}
    base = common_folder(paths)
    return {f"data_files: {os.path.relpath(path, base)}": files.of(path)[:16] for path in paths}


def _of_content(dataset: Any, files: FileDigests) -> Fingerprint:
    attributes = attributes_of(dataset) if _is_plain_object(dataset) else None
    roots, memo = folders_in((attributes or {}).values()), dict[int, tuple[Any, bytes]]()
    walks: dict[str, Walk] = {}
    problems: dict[str, str] = {}
    for name, value in (attributes or {_WHOLE: dataset}).items():
        walks[name] = Walk(files, roots, memo)
        try:
            if attributes is None:
                walks[name].add(value, "data set")
            else:
                walks[name].add_attribute(name, value, name)
        except OSError:
            raise
        # An object of a user's may fail in any way when it is looked at; that must not keep a job from starting.
        except Exception as error:  # noqa: BLE001
            problems[name] = str(error) if isinstance(error, NotTellableError) else f"{type(error).__name__}: {error}"
    if not any(walk.saw_content for name, walk in walks.items() if name not in problems):
        folder = next((walk.saw_folder for walk in walks.values() if walk.saw_folder), "")
        if folder:
            return Fingerprint(UNKNOWN, reason=f"it reads from the folder {folder}, and does not say which files")
        if problems or attributes == {}:
            return Fingerprint(UNKNOWN, reason="; ".join(problems.values()) or "it holds nothing")
    return _sealed(walks, problems)


def _is_plain_object(dataset: Any) -> bool:
    """Whether a data set is an object of a user's, or of torch's, whose attributes say what it holds."""
    is_known = package_of(type(dataset)) in _KNOWN or isinstance(dataset, _CONTAINERS)
    return not is_known and not hasattr(dataset, "__next__") and attributes_of(dataset) is not None


def _sealed(walks: Mapping[str, Walk], problems: Mapping[str, str]) -> Fingerprint:
    digests = {name: UNKNOWN if name in problems else walk.digest().hex() for name, walk in walks.items()}
    text = "\n".join(f"{name} {digest}" for name, digest in digests.items())
    shown = {name: digest[:16] for name, digest in list(digests.items())[:_MAX_PARTS]}
    return Fingerprint(hashlib.sha256(text.encode()).hexdigest(), shown, "; ".join(problems.values()))
