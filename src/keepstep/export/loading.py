"""Fills a model from a model state (`source_checkpoint`), under any layout; through a mapper where one is given."""

import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from keepstep.dcp.shards import narrowed, parts_of
from keepstep.dcp.source import DamageFoundError, open_source
from keepstep.errors import ConfigError, DamagedCheckpointError, StateMismatchError
from keepstep.export.mapped import read_whole, specs_of
from keepstep.export.mapper import Mapper, mapper_for, stream
from keepstep.export.origin import CheckpointOrigin, FilesOrigin, Origin, Weight
from keepstep.export.source import is_checkpoint
from keepstep.state.names import names_of

logger = logging.getLogger("keepstep")

_SHOWN = 5
_AUTO = "auto"
_MODEL = "model"
# Steps that change no element, so that a part of the result is a part of what is taken.
_NAMES_ONLY = frozenset({"rename", "keep"})


@contextmanager
def open_state(source: str | Path) -> Iterator[Origin]:
    """The weights of a model state: a safetensors file, a folder of them, or a checkpoint of keepstep.

    Raises:
        ConfigError: there is no such model state, or it is not readable.
        DamagedCheckpointError: the checkpoint is not as it was written.
    """
    if not is_checkpoint(source):
        with FilesOrigin(source, (), {}) as files:
            yield files
        return
    try:
        with open_source(Path(source)) as opened:
            yield CheckpointOrigin(opened, _MODEL)
    except DamageFoundError as error:
        raise DamagedCheckpointError(f"source_checkpoint = {source} is damaged: {error}") from error


def find_mapper(choice: str | None, source: str | Path) -> Mapper | None:
    """The mapper that a configuration names: a YAML file; "auto" for that of the family in the source's config.json.

    Raises:
        ConfigError: the file is no mapper, or the family is not known.
    """
    if choice is None:
        return None
    if choice != _AUTO:
        return Mapper.from_yaml(choice)
    place = Path(source) / "config.json"
    try:
        return mapper_for(json.loads(place.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"source_mapper = auto: {place} is missing; it tells the family of the model") from None
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"source_mapper = auto: {place} is not readable: {error}") from error


def load_source(
    source: str | Path,
    models: Sequence[nn.Module],
    *,
    optional: Collection[str] = (),
    skip: Collection[str] = (),
    mapper: Mapper | None = None,
) -> tuple[str, ...]:
    """Copy a model state into the models, in place; every rank takes its own shards.

    Without a mapper each rank reads only the parts that it holds. Nothing is copied before all names and shapes are
    known to fit.

    Args:
        source: see `open_state`.
        models: model stages.
        optional: names that the model state may lack.
        skip: names that are left as they are.
        mapper: from the names and shapes of the model state to those of the models.

    Returns:
        Names that the model state has, after the mapper, and these models do not.

    Raises:
        ConfigError: the model state is missing or not readable, or the mapper does not fit it.
        StateMismatchError: it lacks names, or has other shapes: all of them are listed.
        DamagedCheckpointError: a checkpoint is not as it was written.
    """
    names = names_of(models)
    wanted = {n: value for n, value in names.values.items() if isinstance(value, torch.Tensor) and n not in skip}
    with open_state(source) as origin:
        feed = _Direct(origin) if mapper is None else _Mapped(origin, mapper)
        found = _match(feed.shapes, wanted, names.aliases, optional, source)
        feed.fill({there: wanted[name] for name, there in found.items()})
        known = {*wanted, *names.aliases, *skip}
        return tuple(sorted(name for name in feed.shapes if name not in known))


def _match(
    there: Mapping[str, tuple[int, ...]],
    wanted: Mapping[str, torch.Tensor],
    aliases: Mapping[str, str],
    optional: Collection[str],
    source: str | Path,
) -> dict[str, str]:
    """For each wanted name the one in the model state: its own, or another of the same tensor (tied weights)."""
    found: dict[str, str] = {}
    missing, differing = [], []
    for name, value in wanted.items():
        own = [name, *(alias for alias, first in aliases.items() if first == name)]
        match = next((one for one in own if one in there), None)
        if match is None:
            missing += [] if any(one in optional for one in own) else [name]
        elif there[match] != tuple(value.shape):
            differing.append(f"{match} has shape {there[match]}, the model has {tuple(value.shape)}")
        else:
            found[name] = match
    problems = [f"lacks {_listed(missing)}"] if missing else []
    problems += [_listed(differing)] if differing else []
    if problems:
        extra = sorted(there.keys() - wanted.keys() - aliases.keys())
        unread = f" (it has, and nobody takes, {_listed(extra)})" if extra else ""
        raise StateMismatchError(f"source_checkpoint = {source} {'; '.join(problems)}{unread}")
    return found


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


@dataclass
class _Direct:
    """Weights as they are: of each tensor the parts that this rank holds are read."""

    origin: Origin

    def __post_init__(self) -> None:
        self._first = {alias: name for name, weight in self.origin.weights.items() for alias in weight.names}
        self.shapes = {name: self._weight(name).shape for name in [*self.origin.weights, *self._first]}

    def fill(self, targets: Mapping[str, torch.Tensor]) -> None:
        """Copy into these tensors, by name."""
        with torch.no_grad():
            for name, target in targets.items():
                for box, local in parts_of(target):
                    part = torch.empty(box.shape, dtype=self._weight(name).dtype)
                    self.origin.fill([(self._first.get(name, name), box, part)])
                    local.copy_(part)

    def _weight(self, name: str) -> Weight:
        return self.origin.weights[self._first.get(name, name)]


class _Mapped:
    """What a mapper makes of the weights. Of what only gets another name, the parts that this rank holds are read; of
    all else whole tensors, group after group, but for groups of which it needs nothing."""

    def __init__(self, origin: Origin, mapper: Mapper) -> None:
        self._origin, self._plan = origin, mapper.plan(specs_of(origin))
        self.shapes = {output.name: output.spec.shape for output in self._plan.outputs}
        self._renamed = {
            tensor.name: tensor.inputs[0]
            for tensor in self._plan.tensors
            if len(tensor.inputs) == 1 and all(step.rpartition(" ")[2] in _NAMES_ONLY for step in tensor.steps)
        }

    def fill(self, targets: Mapping[str, torch.Tensor]) -> None:
        """Copy into these tensors, by name."""
        direct = {name: self._renamed[name] for name in targets if name in self._renamed}
        straight = _Direct(self._origin)
        for name, there in direct.items():
            straight.fill({there: targets[name]})
        left = targets.keys() - direct.keys()
        groups = [group for group in self._plan.groups if any(one.name in left for one in group.outputs)]
        with torch.no_grad():
            for name, tensor in stream(self._plan, lambda name: read_whole(self._origin, name), groups):
                if name in left:
                    for box, local in parts_of(targets[name]):
                        local.copy_(narrowed(tensor, box))
