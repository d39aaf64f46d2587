"""From a YAML file to a mapper's steps. Every refusal is one line: place, value, what is allowed."""

import difflib
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from keepstep.config.base import Section
from keepstep.config.documents import read_yaml
from keepstep.config.mapper import KINDS, MapperConfig
from keepstep.errors import ConfigError


def load_mapper(path: str | Path) -> MapperConfig:
    """Read and check a mapper file. Raises ConfigError if it is missing, is no YAML, or a value is not allowed."""
    return parse_mapper(read_yaml(path, "mapper file"), source=str(path))


def parse_mapper(content: Any, *, source: str = "mapper") -> MapperConfig:
    """Check a mapper given as plain containers. Raises ConfigError with a line for each problem."""
    if not isinstance(content, dict):
        raise ConfigError(f"{source}: must hold a mapping with steps")
    try:
        return MapperConfig.model_validate(content)
    except ValidationError as error:
        raise ConfigError("\n".join(f"{source}: {_line(one)}" for one in error.errors())) from None


def _line(error: ErrorDetails) -> str:
    location = error["loc"]
    place = ".".join(str(part) for part in location if part != "[key]") or "the file"
    value = error["input"]
    match error["type"]:
        case "extra_forbidden":
            allowed = sorted(_section_at(location[:-1]).model_fields)
            return f"{place}: unknown key; {_near(str(location[-1]), allowed)}allowed here: {', '.join(allowed)}"
        case "missing":
            return f"{place}: missing; it must be given"
        case "union_tag_not_found":
            return f"{place}: a step needs a kind, one of {', '.join(KINDS)}"
        case "union_tag_invalid":
            kind = str(value.get("kind"))
            return f"{place}.kind = {kind!r}: unknown; {_near(kind, list(KINDS))}one of {', '.join(KINDS)}"
    message = error["msg"].removeprefix("Value error, ")
    return f"{place}: {message}" if isinstance(value, dict) else f"{place} = {value!r}: {message}"


def _near(word: str, allowed: list[str]) -> str:
    near = difflib.get_close_matches(word, allowed, n=1)
    return f"did you mean {near[0]}? " if near else ""


def _section_at(location: tuple[int | str, ...]) -> type[Section]:
    """The section that a place is in: the last kind of step on the way to it."""
    kinds = [KINDS[part] for part in location if isinstance(part, str) and part in KINDS]
    return kinds[-1] if kinds else MapperConfig
