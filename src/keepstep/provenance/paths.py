"""Finds the files that an object names. What lies in a file counts, and where it lies does not."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

_LONGEST = 4096
_LOOKED_AT = 8


def is_path(text: str) -> bool:
    """Whether a text is meant as a path: absolute, or relative and there is such a file."""
    if not 1 < len(text) < _LONGEST or "\n" in text or "\0" in text or "://" in text:
        return False
    return os.path.isabs(text) or ((os.sep in text or "." in text) and os.path.isfile(text))


def resolve(value: Any, roots: Sequence[str]) -> str | None:
    """The file that a value names, by itself or below one of these folders; None when it names none."""
    if not isinstance(value, str | PurePath) or len(text := os.fspath(value)) >= _LONGEST or "\0" in text or not text:
        return None
    if os.path.isfile(text) and (os.path.isabs(text) or os.sep in text or "." in text):
        return os.path.abspath(text)
    if os.path.isabs(text):
        return None
    joined = (os.path.join(root, text) for root in roots)
    return next((os.path.abspath(path) for path in joined if os.path.isfile(path)), None)


def names_files(values: Sequence[Any], roots: Sequence[str]) -> bool:
    """Whether the first of these values, or a part of it, names a file or an absolute folder."""
    first = values[0] if len(values) else None
    parts = _parts(first) if isinstance(first, Mapping | list | tuple) else [first]
    for part, _ in zip(parts, range(_LOOKED_AT), strict=False):
        if resolve(part, roots) is not None:
            return True
        if isinstance(part, str | PurePath) and os.path.isabs(part) and len(os.fspath(part)) < _LONGEST:
            return "\0" not in os.fspath(part) and os.path.isdir(part)
    return False


def files_in(values: Sequence[Any], roots: Sequence[str]) -> Iterator[str]:
    """All files that values, or parts of them, name."""
    for value in values:
        if isinstance(value, Mapping | list | tuple):
            yield from files_in(list(_parts(value)), roots)
        elif (found := resolve(value, roots)) is not None:
            yield found


def common_folder(files: Sequence[str]) -> str:
    """The folder below which all files lie. Labels are often names of folders, so names below it count."""
    return os.path.commonpath([os.path.dirname(file) for file in files])


def _parts(value: Any) -> Iterator[Any]:
    yield from value.values() if isinstance(value, Mapping) else value
