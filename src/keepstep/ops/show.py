"""Shows what one checkpoint is and holds."""

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keepstep.errors import CheckpointNotFoundError, DamagedCheckpointError
from keepstep.ops.found import is_trainers, open_checkpoint
from keepstep.ops.lineage import ancestors
from keepstep.ops.safetensors_source import is_export, safetensors_side
from keepstep.ops.trainer_state import TrainerFacts, trainer_facts
from keepstep.plan.difference import Kind
from keepstep.plan.manifest import Manifest
from keepstep.plan.resume import Found
from keepstep.plan.trainer_files import sort_out
from keepstep.storage.files import Files, LocalFiles
from keepstep.storage.index import MAX_INDEX, IndexedFile, IndexFormatError, from_bytes
from keepstep.storage.plain import NotPlainError
from keepstep.storage.run_record import read_record

_LARGEST = 10
_INDEXES = "__*.index"


@dataclass(frozen=True)
class Part:
    """One component: how many values it holds and their bytes on disk."""

    component: str
    entries: int
    size: int


@dataclass(frozen=True)
class Tensor:
    """One shard of a tensor."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    size: int


@dataclass(frozen=True)
class Shown:
    """A checkpoint, from its manifest, run record and indexes; `trainer` is what one of a Trainer tells."""

    path: str
    step: int
    condition: str
    problem: str
    size: int | None
    world_size: int | None
    attempt: int | None
    files: dict[str, int]
    parts: tuple[Part, ...]
    parameters: int
    dtypes: dict[str, int]
    largest: tuple[Tensor, ...]
    record: dict[str, Any]
    parents: tuple[str, ...]
    trainer: TrainerFacts | None = None


def show(path: Path) -> Shown:
    """Describe one checkpoint."""
    found = open_checkpoint(path)
    is_a_trainers, indexes = is_trainers(path), [file.name for file in path.glob(_INDEXES)]
    return describe(
        str(path),
        found.found,
        found.manifest,
        _of_a_trainer(path, found.manifest) if is_a_trainers else indexed(LocalFiles(path), indexes),
        read_record(path),
        ancestors(path.absolute(), found.found.step),
        trainer_facts(path, _names(path, found.manifest)) if is_a_trainers else None,
    )


def describe(
    place: str,
    found: Found,
    manifest: Manifest | None,
    content: tuple[tuple[Part, ...], list[Tensor]],
    record: dict[str, Any],
    parents: tuple[str, ...],
    trainer: TrainerFacts | None = None,
) -> Shown:
    """What is told of a checkpoint, wherever it lies.

    Args:
        place: path or address.
        found, manifest: what it is.
        content: its parts and tensors.
        record: its run record.
        parents: newest first.
        trainer: what a Trainer's own files tell.
    """
    parts, tensors = content
    model = [t for t in tensors if t.key.startswith("model.")]
    return Shown(
        path=place,
        step=found.step,
        condition=found.condition.value,
        problem=found.problem,
        size=manifest.size if manifest else None,
        world_size=manifest.world_size if manifest else None,
        attempt=manifest.attempt if manifest else None,
        files={name: record.size for name, record in manifest.files.items()} if manifest else {},
        parts=parts,
        parameters=sum(math.prod(t.shape) for t in model),
        dtypes=dict(Counter(t.dtype for t in tensors)),
        largest=tuple(sorted(tensors, key=lambda t: -t.size)[:_LARGEST]),
        record=record,
        parents=parents,
        trainer=trainer,
    )


def indexed(files: Files, names: Collection[str]) -> tuple[tuple[Part, ...], list[Tensor]]:
    """Parts and tensors by the indexes of these names. Those that are not readable are left out."""
    items = [item for file in _indexes(files, names) for item in file.items]
    tensors = [Tensor(i.key, i.dtype, i.shape, i.length) for i in items if i.dtype]
    return _parts([(item.key.split(".", 1)[0], item.length) for item in items]), tensors


def _of_a_trainer(path: Path, manifest: Manifest | None) -> tuple[tuple[Part, ...], list[Tensor]]:
    """Tensors by the headers of safetensors files; other state by its files."""
    names, kinds = _names(path, manifest), []
    if is_export(path):
        try:
            kinds = [item.kind for item in safetensors_side(path).items.values()]
        except (DamagedCheckpointError, CheckpointNotFoundError):
            kinds = []  # `verify` is the command that judges
    return trainer_parts(names, kinds), [Tensor(kind.key, kind.dtype, kind.shape, kind.size) for kind in kinds]


def trainer_parts(names: Mapping[str, int], kinds: Collection[Kind] = ()) -> tuple[Part, ...]:
    """What a Trainer's checkpoint holds.

    Args:
        names: its files and their sizes.
        kinds: the tensors of its weights; where they are not known, the files of weights stand for them.
    """
    held = sort_out(names)
    found = [("model", kind.size) for kind in kinds]
    for component, files in (
        ("model", () if kinds else (*held.weights, *held.adapters)),
        ("optimizer", held.optimizer),
        ("lr_scheduler", held.scheduler),
        ("scaler", held.scaler),
        ("rng", held.rng),
    ):
        found += [(component, names[name]) for name in files]
    return _parts(found)


def _names(path: Path, manifest: Manifest | None) -> dict[str, int]:
    """Files and their sizes, by the manifest or, where a Trainer alone wrote it, as they lie there."""
    if manifest is not None:
        return {name: record.size for name, record in manifest.files.items()}
    return {
        file.relative_to(path).as_posix(): file.lstat().st_size
        for file in path.rglob("*")
        if file.is_file() and not file.is_symlink()
    }


def _parts(found: list[tuple[str, int]]) -> tuple[Part, ...]:
    """Counts and bytes by component."""
    count, size = Counter[str](), Counter[str]()
    for component, bytes_ in found:
        count[component] += 1
        size[component] += bytes_
    return tuple(Part(name, count[name], size[name]) for name in sorted(count))


def _indexes(files: Files, names: Collection[str]) -> list[IndexedFile]:
    found: list[IndexedFile] = []
    for name in sorted(names):
        try:
            found += from_bytes(files.read(name, MAX_INDEX))
        except (IndexFormatError, NotPlainError, FileNotFoundError):
            continue  # `verify` is the command that judges
    return found
