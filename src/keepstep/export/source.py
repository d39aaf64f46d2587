"""Fills a model from a safetensors model state (`source_checkpoint`)."""

import json
from collections.abc import Collection, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from torch.distributed.tensor import DTensor

from keepstep.errors import ConfigError, StateMismatchError
from keepstep.plan.weight_files import INDEX_FILE, SINGLE_FILE
from keepstep.state.names import named_tensors
from keepstep.storage.content import FileDigests
from keepstep.storage.digest import digest_of_bytes

_SHOWN = 5


def find_files(source: str | Path) -> list[Path]:
    """The safetensors files of a model state: a file, or a folder with one, or with an index of several.

    Raises:
        ConfigError: there is no such model state.
    """
    path = Path(source)
    if path.is_file():
        return [path]
    if (path / SINGLE_FILE).is_file():
        return [path / SINGLE_FILE]
    if (path / INDEX_FILE).is_file():
        try:
            names = set(json.loads((path / INDEX_FILE).read_text())["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"source_checkpoint = {source}: {INDEX_FILE} is not readable: {error!r}") from error
        files = [path / name for name in sorted(names)]
        absent = [file for file in files if not file.is_file()]
        if absent:
            raise ConfigError(f"source_checkpoint = {source}: {absent[0]} is named in the index and missing")
        return files
    raise ConfigError(
        f"source_checkpoint = {source}: no model state there; it must be a .safetensors file or a folder with "
        f"{SINGLE_FILE} or {INDEX_FILE}"
    )


def source_digest(source: str | Path, files: FileDigests) -> str:
    """A digest (hex) of all bytes of a model state. Raises ConfigError when there is none."""
    return digest_of_bytes("".join(files.of_all(find_files(source))).encode())


def load_source(
    source: str | Path,
    models: Sequence[nn.Module],
    *,
    optional: Collection[str] = (),
    skip: Collection[str] = (),
) -> None:
    """Copy a model state into the models, in place; every rank takes its own shards.

    Args:
        source: see `find_files`.
        models: model stages.
        optional: names that the model state may lack.
        skip: names that are left as they are.

    Raises:
        ConfigError: the model state is missing or not readable.
        StateMismatchError: it lacks a name or has another shape; the model may be partly filled.
    """
    wanted = {
        name: value for name, value in named_tensors(models) if isinstance(value, torch.Tensor) and name not in skip
    }
    filled = set()
    for file in find_files(source):
        try:
            with safe_open(file, framework="pt") as content:
                for name in set(content.keys()) & wanted.keys():
                    target = wanted.pop(name)
                    _copy(target, content.get_tensor(name), name, source)
                    filled.add(id(target))
        except SafetensorError as error:
            raise ConfigError(f"source_checkpoint = {source}: {file} is not readable: {error}") from error
    # Of tied weights such files hold one; the model has the others by it.
    names = sorted(name for name in wanted.keys() - set(optional) if id(wanted[name]) not in filled)
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise StateMismatchError(f"source_checkpoint = {source} lacks {', '.join(names[:_SHOWN])}{more}")


def _copy(target: torch.Tensor, value: torch.Tensor, name: str, source: str | Path) -> None:
    if target.shape != value.shape:
        raise StateMismatchError(
            f"source_checkpoint = {source}: {name} has shape {tuple(value.shape)}, the model has {tuple(target.shape)}"
        )
    with torch.no_grad():
        if isinstance(target, DTensor):
            for chunk in target.__create_chunk_list__():
                part = value
                for dim, (offset, size) in enumerate(zip(chunk.offsets, chunk.sizes, strict=True)):
                    part = part.narrow(dim, min(offset, value.shape[dim]), size)
                target.to_local().copy_(part)
        else:
            target.copy_(value)
