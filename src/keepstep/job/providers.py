"""Resolves import paths of providers, before anything is started."""

import difflib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from keepstep.config.data_files import DataFilesConfig
from keepstep.config.job import ProvidersConfig
from keepstep.errors import ConfigError

Provider = Callable[..., Any]


@dataclass(frozen=True)
class Providers:
    """The functions behind the import paths."""

    model: Provider
    dataset: Provider
    task: Provider
    optimizer: Provider | None
    lr_scheduler: Provider | None


def make_importable(job_file: Path) -> None:
    """Let providers be imported from the job file's folder, and from the working folder."""
    for folder in (str(Path.cwd()), str(job_file.resolve().parent)):
        if folder not in sys.path:
            sys.path.insert(0, folder)


def resolve(config: ProvidersConfig) -> Providers:
    """Import all providers. Raises ConfigError with key, value and cause for one that does not import."""
    return Providers(**{name: _found(f"providers.{name}", what) for name, what in config})


def call(key: str, path: str | DataFilesConfig | None, provider: Provider, *arguments: Any) -> Any:
    """Call a provider. Raises ConfigError, with key, value and cause, when it fails or returns nothing."""
    where = f"{key} = {path!r}"
    try:
        inspect.signature(provider).bind(*arguments)
    except TypeError:
        names = "context" if len(arguments) == 1 else f"context, {key.removeprefix('providers.')}'s subject"
        raise ConfigError(f"{where}: must take {len(arguments)} arguments ({names})") from None
    except ValueError:
        pass  # a callable without a signature
    try:
        made = provider(*arguments)
    except ConfigError:
        raise
    # It is a user's code: whatever it raises means the same here, and the cause is kept.
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{where}: failed: {cause} (KEEPSTEP_TRACEBACK=1 shows where)") from error
    if made is None:
        raise ConfigError(f"{where}: returned nothing")
    return made


def _found(key: str, what: Any) -> Any:
    """The provider behind an import path, or of built-in files; None where nothing is given."""
    if isinstance(what, DataFilesConfig):
        return partial(_data_files, key, what)
    return what and _import(key, what)


def _data_files(key: str, config: DataFilesConfig, context: Any) -> Any:
    from keepstep.data import files  # here, so that jobs without pay nothing for it

    try:
        match config.kind:
            case "jsonl":
                return files.jsonl(config.paths)
            case "parquet":
                return files.parquet(config.paths, config.columns)
            case "tar":
                return files.tar(config.paths)
            case "hugging_face":
                return files.hugging_face(str(config.paths))
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from error


def _import(key: str, path: str) -> Provider:
    module_name, _, attribute = path.partition(":")
    try:
        found: Any = import_module(module_name)
    # An import runs a user's module: whatever it raises means the same here, and the cause is kept.
    except Exception as error:
        raise ConfigError(
            f"{key} = {path!r}: {module_name} does not import: {type(error).__name__}: {error}"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, dir(found), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"{key} = {path!r}: {module_name} has no {attribute}{hint}")
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(f"{key} = {path!r}: must be a function, not a {type(found).__name__}")
    provider: Provider = found
    return provider
