"""Reads YAML documents: safely, and without a key that is written twice."""

from pathlib import Path
from typing import Any

import yaml

from keepstep.errors import ConfigError


class _UniqueKeyLoader(yaml.SafeLoader):
    """A safe loader that refuses a key written twice: YAML itself would silently keep the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                problem = "a key must be a plain word"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            if key_node.value in seen:
                problem = f"the key {key_node.value!r} stands twice in one mapping"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


def read_yaml(path: str | Path, what: str) -> Any:
    """The content of a YAML file.

    Args:
        path: the file.
        what: what it is, for messages ("job file").

    Raises:
        ConfigError: it is missing, cannot be read or is no YAML.
    """
    try:
        return parse_yaml(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such {what}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: the {what} cannot be read: {error}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from error


def parse_yaml(text: str) -> Any:
    """The content of a YAML text. Raises ValueError, in one line, if it is no YAML."""
    try:
        return yaml.load(text, _UniqueKeyLoader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
