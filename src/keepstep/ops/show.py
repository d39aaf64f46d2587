"""Shows what one checkpoint is and holds."""

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keepstep.errors import CheckpointNotFoundError
from keepstep.ops.lineage import ancestors
from keepstep.plan import layout
from keepstep.storage.index import MAX_INDEX, IndexedFile, IndexFormatError, from_bytes
from keepstep.storage.plain import NotPlainError, read_plain
from keepstep.storage.run_record import read_record
from keepstep.storage.survey import SurveyedCheckpoint, inspect

_LARGEST = 10


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
    """A checkpoint, from its manifest, run record and indexes."""

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


def open_checkpoint(path: Path) -> SurveyedCheckpoint:
    """Look at one checkpoint folder. Raises CheckpointNotFoundError when the path is none."""
    step = layout.step_of(path.resolve().name)
    if step is None or not path.is_dir():
        raise CheckpointNotFoundError(f"{path}: not a checkpoint; give a save-<step> folder")
    return inspect(path, step)


def show(path: Path) -> Shown:
    """Describe one checkpoint."""
    found = open_checkpoint(path)
    manifest = found.manifest
    items = [item for file in _indexes(path) for item in file.items]
    count, size = Counter[str](), Counter[str]()
    for item in items:
        component = item.key.split(".", 1)[0]
        count[component] += 1
        size[component] += item.length
    tensors = [Tensor(i.key, i.dtype, i.shape, i.length) for i in items if i.dtype]
    model = [t for t in tensors if t.key.startswith("model.")]
    return Shown(
        path=str(path),
        step=found.found.step,
        condition=found.found.condition.value,
        problem=found.found.problem,
        size=manifest.size if manifest else None,
        world_size=manifest.world_size if manifest else None,
        attempt=manifest.attempt if manifest else None,
        files={name: record.size for name, record in manifest.files.items()} if manifest else {},
        parts=tuple(Part(name, count[name], size[name]) for name in sorted(count)),
        parameters=sum(math.prod(t.shape) for t in model),
        dtypes=dict(Counter(t.dtype for t in tensors)),
        largest=tuple(sorted(tensors, key=lambda t: -t.size)[:_LARGEST]),
        record=read_record(path),
        parents=ancestors(path.absolute(), found.found.step),
    )


def _indexes(path: Path) -> list[IndexedFile]:
    files: list[IndexedFile] = []
    for index in sorted(path.glob("__*.index")):
        try:
            files += from_bytes(read_plain(index, MAX_INDEX))
        except (IndexFormatError, NotPlainError, FileNotFoundError):
            continue  # `verify` is the command that judges
    return files
