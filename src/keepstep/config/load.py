"""From a YAML file and `--set` overrides to a JobConfig. Every refusal is one line: key, value, what is allowed."""

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from keepstep.config.documents import parse_yaml, read_yaml
from keepstep.config.job import JobConfig
from keepstep.errors import ConfigError


def load_job(path: str | Path, overrides: Sequence[str] = ()) -> JobConfig:
    """Read and check a job file.

    Args:
        path: the YAML file.
        overrides: `a.b.c=value` strings; the value is read as YAML.

    Raises:
        ConfigError: the file is missing or is no YAML mapping, or a value in it is not allowed.
    """
    content = read_yaml(path, "job file")
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: must hold a mapping with providers and either trainer or inference")
    for override in overrides:
        _apply_override(content, override)
    return parse_job(content, source=str(path))


def parse_job(content: dict[str, Any], *, source: str = "job") -> JobConfig:
    """Check a job given as plain containers. Raises ConfigError with a line for each problem."""
    try:
        return JobConfig.model_validate(content)
    except ValidationError as error:
        raise ConfigError("\n".join(f"{source}: {_line(e)}" for e in error.errors())) from None


def _apply_override(content: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(f"--set {override}: must look like a.b.c=value")
    try:
        value = parse_yaml(text)
    except ValueError as error:
        raise ConfigError(f"--set {override}: the value is not valid YAML: {error}") from error
    place: Any = content
    for part in parts[:-1]:
        if place.get(part) is None:
            place[part] = {}
        place = place[part]
        if not isinstance(place, dict):
            raise ConfigError(f"--set {override}: {part} is a value, not a section")
    place[parts[-1]] = value


def _line(error: ErrorDetails) -> str:
    # Tags of a union are no keys.
    location = tuple(part for part in error["loc"] if not str(part).startswith(" "))
    key = ".".join(str(part) for part in location) or "the file"
    if error["type"] == "extra_forbidden":
        allowed = _keys_at(location[:-1])
        near = difflib.get_close_matches(str(location[-1]), allowed, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        return f"{key}: unknown key; {hint}allowed here: {', '.join(allowed)}"
    if error["type"] == "missing":
        return f"{key}: missing; it must be given"
    message = error["msg"].removeprefix("Value error, ")
    # A mirror's address may hold what must not be shown.
    if isinstance(error["input"], dict) or "mirror" in location:
        return f"{key}: {message}"
    return f"{key} = {error['input']!r}: {message}"


def _keys_at(location: Iterable[int | str]) -> list[str]:
    """The keys that the section at `location` declares."""
    section: type[BaseModel] = JobConfig
    for part in location:
        if isinstance(part, int):
            continue
        found = _section_of(section.model_fields[part].annotation)
        if found is None:
            return []
        section = found
    return sorted(section.model_fields)


def _section_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if isinstance(annotation, UnionType) or get_args(annotation):
        for inner in get_args(annotation):
            found = _section_of(inner)
            if found is not None:
                return found
    return None
