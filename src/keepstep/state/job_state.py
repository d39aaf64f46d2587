"""All state of a job, and the proof that a load restored all of it."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from keepstep.dcp.entries import Entry, Scope, Stored
from keepstep.dist.world import World
from keepstep.errors import StateError, StateMismatchError
from keepstep.state.component import Component, LoadRequest, Saveable, refuse_unstorable
from keepstep.state.data import DataComponent
from keepstep.state.model import ModelComponent
from keepstep.state.optimizer import OptimizerComponent
from keepstep.state.rng import RngComponent, untouched_random_states
from keepstep.state.scheduler import TorchSchedulerComponent, moved_options
from keepstep.state.stateful import PerRank, Stateful, StatefulComponent

logger = logging.getLogger("keepstep")

_SHOWN = 8


class JobState:
    """What a checkpoint of this job holds. Each part may be left out; random states are always held.

    Args:
        model: a module, or a list of pipeline stages. DDP, FSDP2 and compiled modules are fine as they are.
        optimizer: one optimizer, or a list.
        lr_scheduler, task, metrics, tracker: objects with `state_dict` and `load_state_dict`. All ranks must hold the
            same state, unless wrapped in `PerRank`; of a tracker the main process's state counts.
        data: a data loader with `state_dict` and `load_state_dict`.
        only_trainable_parameters: hold only parameters that require gradients, or did so earlier in the run.
        with_buffers: with these, hold the buffers too (BatchNorm's statistics change while it trains).
        tied_parameters: names of weights that are kept equal to another's on another rank, such as
            {"head.weight": "embed.weight"} with pipeline stages. What is tied on one rank is seen by itself.
        outputs: an output sink of a job; all ranks hold the same state of it.
        optional: parts ("metrics") that a checkpoint may lack, or hold for nobody; all others are an error then.
        dp_rank, dp_size: place and number on the data-parallel axis; by default rank and world size.

    Raises:
        StateError: a part is not what its name says.
    """

    def __init__(
        self,
        *,
        model: nn.Module | Sequence[nn.Module] | None = None,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
        lr_scheduler: Any = None,
        data: Any = None,
        task: Any = None,
        metrics: Any = None,
        tracker: Any = None,
        only_trainable_parameters: bool = False,
        with_buffers: bool = False,
        tied_parameters: Mapping[str, str] | None = None,
        outputs: Any = None,
        optional: Collection[str] = (),
        dp_rank: int | None = None,
        dp_size: int | None = None,
    ) -> None:
        self._stages = _as_list(model, nn.Module, "model")
        self._optimizers = _as_list(optimizer, torch.optim.Optimizer, "optimizer")
        if self._optimizers and not self._stages:
            raise StateError("an optimizer needs its model: its state is stored under the names of the parameters")
        objects = {
            "lr_scheduler": lr_scheduler,
            "task": task,
            "metrics": metrics,
            "tracker": tracker,
            "outputs": outputs,
            "data": data,
        }
        self._objects = {name: part for name, part in objects.items() if part is not None}
        for name, part in self._objects.items():
            inner = part.inner if isinstance(part, PerRank) else part
            if not isinstance(inner, Stateful):
                raise StateError(f"{name}: a {type(inner).__name__} has no state_dict and load_state_dict methods")
        self._only_trainable = only_trainable_parameters
        self._with_buffers = with_buffers
        self._tied = dict(tied_parameters or {})
        unknown = set(optional) - {"model", "optimizer", "rng", *objects}
        if unknown:
            raise StateError(f"optional: {', '.join(sorted(unknown))} is no part of a job's state")
        self.optional = frozenset(optional)
        self._dp = (dp_rank, dp_size)

    @property
    def data(self) -> Any:
        """The data loader that was given; None without one."""
        part = self._objects.get("data")
        return part.inner if isinstance(part, PerRank) else part

    @property
    def stages(self) -> Sequence[nn.Module]:
        """The model's stages that were given."""
        return tuple(self._stages)

    @property
    def dp_size(self) -> int | None:
        """The number of ranks that read different samples; None: all."""
        return self._dp[1]

    def components(self, world: World) -> list[Component]:
        """The parts, in the order in which they are applied: random states last."""
        parts: list[Component] = []
        model = ModelComponent(
            self._stages,
            only_trainable=self._only_trainable,
            with_buffers=self._with_buffers,
            rank=world.rank,
            tied=self._tied,
        )
        if self._stages:
            parts.append(model)
        if self._optimizers:
            moved = moved_options(self._objects.get("lr_scheduler"))
            parts.append(OptimizerComponent(self._optimizers, model.book.latest, moved))
        for name, part in self._objects.items():
            if name == "data":
                dp_rank, dp_size = self._dp
                rank = world.rank if dp_rank is None else dp_rank
                loader = part.inner if isinstance(part, PerRank) else part  # it is per rank as it is
                parts.append(DataComponent(loader, rank, world.size if dp_size is None else dp_size))
            elif isinstance(part, LRScheduler):
                parts.append(TorchSchedulerComponent(part))
            elif isinstance(part, PerRank):
                prefix = f"{name}.rank_{world.rank}"
                parts.append(StatefulComponent(name, part.inner, prefix, Scope.ONE_RANK, world.size))
            else:
                scope = Scope.MAIN if name == "tracker" else Scope.EVERY_RANK
                parts.append(StatefulComponent(name, part, scope=scope))
        parts.append(RngComponent(world.rank))
        return parts


def collect(components: Sequence[Saveable]) -> dict[str, Entry]:
    """All entries of all components. Raises StateError when two claim one key.

    A state_dict() of a user's may draw random numbers (a StatefulDataLoader does): random states are read before any
    other part, and put back after all.
    """
    entries: dict[str, Entry] = {}
    with untouched_random_states():
        for component in sorted(components, key=lambda part: not isinstance(part, RngComponent)):
            new = component.collect()
            for clash in new.keys() & entries.keys():
                raise StateError(f"two components hold the key {clash}")
            entries |= new
    for key, entry in entries.items():
        refuse_unstorable(key, entry.value)
    return entries


@dataclass(frozen=True)
class Problems:
    """How registered state and a checkpoint do not fit, in words; `left` are keys that this rank does not take."""

    missing: list[str]
    differing: list[str]
    left: list[str]


@dataclass
class LoadPlan:
    """What every component takes from a checkpoint, and what stands against it."""

    requests: list[tuple[Component, LoadRequest]]
    problems: "Problems"
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    trees: set[str] = field(default_factory=set)


def plan_load(
    components: Sequence[Component],
    stored: Mapping[str, Stored],
    world_keys: frozenset[str],
    optional: frozenset[str] = frozenset(),
) -> LoadPlan:
    """Match registered state and checkpoint, before anything is changed. What does not fit is noted in the plan.

    Args:
        components: the parts of the job.
        stored: all keys of the checkpoint.
        world_keys: keys that belong to the checkpoint itself and to no component.
        optional: names of components that may find nothing, or leave something.

    Raises:
        StateMismatchError: a part cannot be what was saved at all (another kind, another number of ranks).
    """
    problems = Problems([], [], [])
    plan = LoadPlan([(component, component.request(stored)) for component in components], problems)
    exempt = set(world_keys)
    for component, request in plan.requests:
        plan.tensors |= request.tensors
        plan.trees |= request.trees
        exempt |= request.exempt
        problems.missing.extend(_without_optional(request.missing, optional))
        problems.differing.extend(request.differing)
        rank_prefix = f"{component.name}.rank_"
        own_by_rank = any(key.startswith(rank_prefix) for key in (*request.trees, *request.tensors))
        if own_by_rank and component.name not in ("model", "optimizer"):
            exempt |= {key for key in stored if key.startswith(rank_prefix)}
    taken = set(plan.tensors) | plan.trees | exempt
    # Another name of what is taken is taken too.
    left = sorted(key for key in set(stored) - taken if not stored[key].names & taken)
    problems.left.extend(_without_optional(left, optional))
    return plan


def refuse_problems(ranks: Sequence[Problems]) -> None:
    """Refuse what does not fit, given the problems of all ranks. A stage's keys are taken by the ranks that hold it.

    Raises:
        StateMismatchError: lists what is missing, what differs, and what nobody takes.
    """
    missing = list(dict.fromkeys(one for rank in ranks for one in rank.missing))
    differing = list(dict.fromkeys(one for rank in ranks for one in rank.differing))
    left = sorted(set.intersection(*(set(rank.left) for rank in ranks)))
    if missing or differing or left:
        raise StateMismatchError(_mismatch_text(missing, differing, left))


def check(plan: LoadPlan, trees: Mapping[str, Any]) -> None:
    """Let every component look at what it will take over. Changes nothing; raises StateMismatchError."""
    for component, request in plan.requests:
        if request.tensors or request.trees:
            component.check({key: trees[key] for key in request.trees})


def apply(plan: LoadPlan, trees: Mapping[str, Any]) -> None:
    """Hand every component what it asked for. Tensors of the plan must be filled."""
    for component, request in plan.requests:
        if request.tensors or request.trees:
            component.apply({**request.tensors, **{key: trees[key] for key in request.trees}})


def _without_optional(keys: list[str], optional: frozenset[str]) -> list[str]:
    """The keys of parts that are not optional; of the others a line in the log tells."""
    exempt = [key for key in keys if key.split(".")[0] in optional]
    if exempt:
        logger.warning("left as it is, since its part is optional: %s", ", ".join(exempt[:_SHOWN]))
    return [key for key in keys if key not in exempt]


def _mismatch_text(missing: list[str], differing: list[str], left: list[str]) -> str:
    lines = [
        "the checkpoint does not fit the registered state; nothing was changed. For a new run take another run name or "
        "save_dir; to go on with this one, register what was saved."
    ]
    for title, names in (
        ("In both, but different", differing),
        ("Registered, but not in the checkpoint", missing),
        ("In the checkpoint, but nobody takes it", left),
    ):
        if names:
            more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            lines.append(f"{title}: {', '.join(names[:_SHOWN])}{more}.")
    if missing and left:
        lines.append("Was a part renamed? It is found under its old name only.")
    return " ".join(lines)


def _as_list(value: Any, kind: type, name: str) -> list[Any]:
    if value is None:
        return []
    parts = list(value) if isinstance(value, list | tuple) else [value]
    for part in parts:
        if not isinstance(part, kind):
            raise StateError(f"{name}: a {type(part).__name__} is no {kind.__name__}")
    return parts
