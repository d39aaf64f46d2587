"""What an export consists of, decided before anything is written: tensors, their files, ties, and the identity."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

import torch

from keepstep.dcp.source import DamageFoundError, Source
from keepstep.errors import ConfigError, DamagedCheckpointError, UnsupportedStateError
from keepstep.export.adapter_origin import find_adapter
from keepstep.export.loading import open_state
from keepstep.export.mapped import MappedOrigin
from keepstep.export.mapper import Mapper
from keepstep.export.merge import MergedOrigin, frozen_of_base
from keepstep.export.origin import CheckpointOrigin, FilesOrigin, Joined, Origin, Without, named_set
from keepstep.export.source import is_checkpoint
from keepstep.export.stream import Outgoing
from keepstep.plan import layout
from keepstep.plan.difference import Kind
from keepstep.plan.manifest import Manifest
from keepstep.plan.weight_files import DTYPES, METADATA, divide
from keepstep.storage.run_record import read_true_record
from keepstep.storage.survey import inspect

Dtype = Literal["bfloat16", "float16", "float32"]
MODEL = "model"
# Floats of 8 bits mean nothing without the scales beside them, so they stay as they are.
_CAST = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_OF_THE_RUN = ("run", "base_model", "base_revision", "base_weights", "dataset_sha256", "tokenizer_sha256")
_OF_THE_CODE = ("config_sha256", "git_commit", "git_dirty")
_SHOWN = 5


@dataclass(frozen=True)
class Wish:
    """What is asked for; see `keepstep.export_weights`."""

    source: str | Path | None
    weights: str
    dtype: Dtype | None
    max_shard_size: int
    partial: bool
    source_mapper: Mapper | None = None
    mapper: Mapper | None = None
    named: str | None = None
    merge: bool = False
    adapter: str | None = None


@dataclass(frozen=True)
class Selection:
    """What is written.

    Attributes:
        step: of the checkpoint.
        files: each file of tensors, and these in their order.
        tied: names that are left out, and the name of the same tensor that is written.
        identity: what the record says of where the weights come from.
    """

    step: int
    files: dict[str, list[Outgoing]]
    tied: dict[str, str]
    identity: dict[str, Any]

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(one.kind.size for tensors in self.files.values() for one in tensors)


def select(stack: ExitStack, checkpoint: Path, wish: Wish) -> Selection:
    """Open what weights come from, and say which go where. Files stay open as long as `stack` does.

    Raises:
        ConfigError: it is no checkpoint, it has no such weights, or `source` is no model state.
        DamagedCheckpointError: the size of a file, an index or the run record is not as it was written.
        UnsupportedStateError: a dtype that safetensors files do not have.
    """
    step, manifest = committed(checkpoint)
    try:
        opened = stack.enter_context(Source(checkpoint, manifest))
    except DamageFoundError as error:
        raise DamagedCheckpointError(f"{checkpoint} is damaged and not exported: {error}") from error
    weights = wish.weights if wish.named is None else named_set(opened.stored(), wish.named)
    main = CheckpointOrigin(opened, weights)
    frozen = main.frozen() if weights == MODEL else {}
    origins: list[Origin] = [main]
    if wish.merge and wish.source is not None:
        return _merged(stack, checkpoint, step, manifest, main, wish)
    tied = {other: name for name, weight in main.weights.items() for other in weight.names}
    if wish.source is not None:
        held = {*main.weights, *tied}
        if wish.source_mapper is None and not is_checkpoint(wish.source):
            origins.append(stack.enter_context(FilesOrigin(wish.source, held, frozen)))
        else:
            base = stack.enter_context(open_state(wish.source))
            origins.append(Without(MappedOrigin(base, wish.source_mapper) if wish.source_mapper else base, held))
    held = {name for origin in origins for name in origin.weights} | tied.keys()
    lacking = sorted(frozen.keys() - held)
    if lacking and not wish.partial:
        raise ConfigError(_incomplete(checkpoint, lacking))
    if wish.mapper is not None:
        origins, tied = [MappedOrigin(Joined(origins), wish.mapper)], {}
    tensors = {
        name: Outgoing(kind_of(name, weight.dtype, weight.shape, wish.dtype), origin)
        for origin in origins
        for name, weight in origin.weights.items()
    }
    divided = divide([one.kind for one in tensors.values()], wish.max_shard_size)
    return Selection(
        step=step,
        files={name: [tensors[kind.key] for kind in kinds] for name, kinds in divided.items()},
        tied=tied,
        identity={**identity_of(checkpoint), **facts_of(checkpoint, manifest), "weights": weights}
        | {"dtype": wish.dtype},
    )


def _merged(
    stack: ExitStack, checkpoint: Path, step: int, manifest: Manifest, main: CheckpointOrigin, wish: Wish
) -> Selection:
    """The weights of the base, with an adapter in them."""
    assert wish.source is not None
    name, config, adapter = find_adapter(checkpoint, wish.adapter, main)
    base = stack.enter_context(FilesOrigin(wish.source, (), frozen_of_base(main.frozen())))
    merged = MergedOrigin(base, adapter, config, wish.source)
    kinds = [kind_of(key, weight.dtype, weight.shape, wish.dtype) for key, weight in merged.weights.items()]
    files = {file: [Outgoing(kind, merged) for kind in own] for file, own in divide(kinds, wish.max_shard_size).items()}
    facts = {**facts_of(checkpoint, manifest), "weights": wish.weights, "dtype": wish.dtype, "merged": name}
    return Selection(step, files, {}, {**identity_of(checkpoint), **facts})


def identity_of(checkpoint: Path) -> dict[str, str | int]:
    """What tells one checkpoint's export from another's: step, and the digest of its manifest."""
    step = layout.any_step_of(checkpoint.name)
    manifest = json.loads((checkpoint / layout.MANIFEST).read_text())
    return {"step": step if step is not None else -1, "checkpoint": str(manifest["digest"])}


def committed(checkpoint: Path) -> tuple[int, Manifest]:
    """Step and manifest of a checkpoint. Raises ConfigError where it is none, DamagedCheckpointError where it lacks."""
    step = layout.any_step_of(checkpoint.name)
    found = None if step is None else inspect(checkpoint, step)
    if step is None or found is None or found.manifest is None:
        adopt = (
            "; keepstep adopt makes one of a Trainer's" if layout.naming_of(checkpoint.name) is layout.TRAINER else ""
        )
        raise ConfigError(f"{checkpoint} is not a checkpoint of keepstep (a save-<step> folder with a manifest){adopt}")
    if found.found.problem:
        raise DamagedCheckpointError(f"{checkpoint} is damaged and not exported: {found.found.problem}")
    return step, found.manifest


def facts_of(checkpoint: Path, manifest: Manifest) -> dict[str, Any]:
    """What the run record says of where weights come from. Raises DamagedCheckpointError."""
    record: Mapping[str, Any] = read_true_record(checkpoint)
    if not record and layout.RUN_RECORD in manifest.files:
        raise DamagedCheckpointError(
            f"{checkpoint} is damaged and not exported: {layout.RUN_RECORD}: its content has changed"
        )
    return {name: record.get(name) for name in (*_OF_THE_RUN, *_OF_THE_CODE)}


def kind_of(name: str, stored: torch.dtype, shape: Sequence[int], cast: Dtype | None) -> Kind:
    """What a tensor is in a file. Raises UnsupportedStateError for what safetensors files do not have."""
    dtype: torch.dtype = getattr(torch, cast) if cast is not None and stored in _CAST else stored
    known = str(dtype).removeprefix("torch.")
    if known not in DTYPES:
        raise UnsupportedStateError(f"{name} is of {known}, which readers of safetensors files do not take")
    if name == METADATA:
        raise UnsupportedStateError(f"a tensor cannot be called {name} in a safetensors file")
    return Kind(name, known, tuple(shape), prod(shape) * dtype.itemsize)


def _incomplete(checkpoint: Path, lacking: Sequence[str]) -> str:
    more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
    model = read_true_record(checkpoint).get("base_model")
    where = f" (the run began with {model})" if model else ""
    return (
        f"{checkpoint} holds trainable parameters only and lacks {', '.join(lacking[:_SHOWN])}{more}; name the base "
        f"weights with --source{where}, or take --partial to export what it holds"
    )
