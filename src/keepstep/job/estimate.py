"""What the checkpoints of a training job will hold, from its configuration and its providers."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from keepstep.config.checkpointing import CheckpointingConfig
from keepstep.config.job import JobConfig
from keepstep.errors import ConfigError
from keepstep.job import configure
from keepstep.job.determinism import seed_all
from keepstep.job.meta_model import META
from keepstep.job.protocols import JobContext
from keepstep.job.providers import Providers, call, resolve
from keepstep.plan.estimate import Ranks, Retention, retention, saves_of
from keepstep.plan.sizes import readable_size
from keepstep.plan.training_size import Content, Held
from keepstep.state.names import named_tensors


@dataclass(frozen=True)
class JobContent:
    """What a checkpoint of a job holds, on how many ranks, how many there are (None: keep is not known), and notes."""

    content: Content
    ranks: Ranks
    kept: Retention | None
    assumptions: tuple[str, ...]
    notes: tuple[str, ...] = ()


def look_at_job(config: JobConfig, world: int, keep: int | None = None) -> JobContent:
    """Build model and optimizer without memory for them, and look what they hold.

    A model provider that does not work on torch's meta device is called once more, for the CPU.

    Args:
        config: a job with a trainer section.
        world: ranks.
        keep: the newest that remain, in place of num_to_keep; None: what the configuration says.

    Raises:
        ConfigError: the configuration cannot work, or the optimizer's state cannot be told.
    """
    configure.check(config, world)
    trainer = config.trainer
    if trainer is None:
        raise ConfigError(
            "an inference job's checkpoint holds what its task has collected, which grows; give the folder of a run"
        )
    shape, _ = configure.divide_batches(trainer.batching, config.mesh, world)
    providers = resolve(config.providers)
    seed_all(trainer.determinism.base_seed)
    context = JobContext(config, META, 0, world, 0, shape.data_parallel)
    model = _model(config, providers, context)
    factory = trainer.model_stage_factory
    only_trained = factory.checkpoint_only_trainable_parameters
    held = list(_held(model, only_trained=only_trained, with_buffers=factory.checkpoint_buffers))
    held += _moments(_optimizer(config, providers, context, model))
    parameters = list(model.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    content = Content(
        tuple(held),
        sum(parameter.numel() for parameter in parameters),
        sum(parameter.numel() for parameter in trained),
        len(trained),
        len(parameters) - len(trained) if only_trained else 0,
    )
    assumptions = ["what the data, the task and the tracker hold is not counted"]
    if shape.tensor * shape.pipeline > 1:
        assumptions.append("the tensor and the pipeline axis divide the state evenly")
    ranks = Ranks(shape.shard * shape.tensor * shape.pipeline, shape.replicate)
    kept, notes = _kept(trainer.checkpointing, trainer.total_steps, keep)
    return JobContent(content, ranks, kept, tuple(assumptions), notes)


def _kept(config: CheckpointingConfig, total_steps: int, keep: int | None) -> tuple[Retention | None, tuple[str, ...]]:
    """How many checkpoints remain by all rules, and in words what they count for."""
    newest, saves = config.num_to_keep if keep is None else keep, saves_of(total_steps, config.period_steps)
    rules = config.keep
    if rules is None:
        return retention(newest, saves), ()
    every = total_steps // rules.every_steps if rules.every_steps else 0
    best = sum(rule.number for rule in rules.best)
    notes = []
    if newest is not None and every + best:
        counted = f"keep.every_steps {every:,}, keep.best {best:,}"
        notes.append(f"beside the {newest:,} newest there are at most {counted}; some may be the same")
    if newest is not None and rules.younger_than_hours is not None:
        notes.append("what keep.younger_than_hours keeps is not counted: how many are so young depends on the pace")
    budget = None if rules.disk_budget_gb is None else int(min(rules.disk_budget_gb, 1e9) * 1e9)
    if budget is not None:
        notes.append(f"keep.disk_budget_gb lets {readable_size(budget)} remain; pinned ones and the newest always do")
    return retention(newest, saves, every + best, budget), tuple(notes)


def _model(config: JobConfig, providers: Providers, context: JobContext) -> nn.Module:
    key, path = "providers.model", config.providers.model
    try:
        with META:
            model = call(key, path, providers.model, context)
    except ConfigError:
        model = call(key, path, providers.model, replace(context, device=torch.device("cpu")))
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{key} = {path!r}: returned a {type(model).__name__}, and no module")
    _forget_values(model)
    return model


def _forget_values(model: nn.Module) -> None:
    """Leave shapes. Module.to(META) would make two parameters of one that is tied."""
    made: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and not parameter.is_meta:
                bare = nn.Parameter(parameter.detach().to(META), requires_grad=parameter.requires_grad)
                module._parameters[name] = made.setdefault(id(parameter), (parameter, bare))[1]


def _held(model: nn.Module, *, only_trained: bool, with_buffers: bool) -> Iterator[Held]:
    """The entries of `ModelComponent`, each weight once."""
    seen: set[int] = set()
    for _, value in named_tensors([model]):
        if not isinstance(value, torch.Tensor) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, nn.Parameter):
            part = "weights" if value.requires_grad else "frozen weights"
            is_held = value.requires_grad or not only_trained
        else:
            part, is_held = "buffers", with_buffers or not only_trained
        if is_held:
            yield Held(part, tuple(value.shape), value.itemsize)


def _optimizer(config: JobConfig, providers: Providers, context: JobContext, model: nn.Module) -> torch.optim.Optimizer:
    """The job's optimizer after a step, which is when it has its moments."""
    path = config.providers.optimizer
    if path is None or providers.optimizer is None:
        assert config.trainer is not None
        optimizer = configure.build_optimizer(config.trainer.optimizer, model)
    else:
        optimizer = call("providers.optimizer", path, providers.optimizer, context, model)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.empty_like(parameter)
    try:
        optimizer.step()
    # It may be anybody's: one that looks at values cannot work where there are none.
    except Exception as error:
        cause = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ConfigError(
            f"the state of {type(optimizer).__name__} cannot be told without values ({cause}); give --parameters, "
            "--optimizer and --optimizer-dtype instead of the job"
        ) from error
    return optimizer


def _moments(optimizer: torch.optim.Optimizer) -> Iterator[Held]:
    """What it holds for each parameter; single numbers (the step count) are small change."""
    states: list[dict[str, Any]] = list(optimizer.state.values())
    for state in states:
        for value in state.values():
            if isinstance(value, torch.Tensor) and math.prod(value.shape) > 1:
                yield Held("optimizer", tuple(value.shape), value.itemsize)
