"""Builds the parts of a job from its configuration. What cannot work is refused here, before the first step."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from keepstep.checkpoint.probe import save_dir
from keepstep.config.job import JobConfig
from keepstep.config.mesh import MeshConfig
from keepstep.config.outputs import OutputsConfig
from keepstep.config.training import (
    BatchingConfig,
    InferenceConfig,
    ModelStageFactoryConfig,
    OptimizerConfig,
    TrainerConfig,
)
from keepstep.dist.mesh import MeshShape, solve_mesh
from keepstep.dist.world import World
from keepstep.errors import ConfigError
from keepstep.export.loading import find_mapper, load_source
from keepstep.export.mapper import Mapper
from keepstep.export.side_files import has_side_files
from keepstep.export.source import check_state
from keepstep.export.weights import check_target
from keepstep.plan.batching import BatchingError, Division, divide
from keepstep.plan.fork import suffix_of
from keepstep.plan.schedule import ScheduleError, segments
from keepstep.plan.shards import Shard
from keepstep.state.names import named_tensors
from keepstep.state.streams import is_stream
from keepstep.storage.lineage import read_origin
from keepstep.storage.outputs.formats import check_format
from keepstep.storage.shards import refuse_other_division

logger = logging.getLogger("keepstep")

_SHOWN = 5
_INVERSE = "inverse"


def divide_batches(batching: BatchingConfig, mesh: MeshConfig, world_size: int) -> tuple[MeshShape, Division]:
    """Mesh and batches for this world. Raises ConfigError, with what would work, when they don't fit."""
    shape = solve_mesh(mesh, world_size)
    try:
        return shape, divide(batching.global_batch_size, batching.microbatch_size, shape.data_parallel)
    except BatchingError as error:
        raise ConfigError(f"batching: {error}") from None


def check(config: JobConfig, world_size: int) -> None:
    """Refuse what can be told from the configuration alone."""
    section = config.trainer or config.inference
    if section is None:
        raise ConfigError("the job has neither a trainer nor an inference section")
    divide_batches(section.batching, config.mesh, world_size)
    if config.trainer is not None:
        if config.trainer.export_to is not None and section.checkpointing.period_steps == "disable":
            raise ConfigError(
                'trainer.export_to needs the last checkpoint, but checkpointing.period_steps is "disable"'
            )
        try:
            segments(config.trainer.lr_scheduler, config.trainer.total_steps)
        except ScheduleError as error:
            raise ConfigError(f"trainer.lr_scheduler.phases: {error}") from None


def build_optimizer(config: OptimizerConfig, model: nn.Module) -> torch.optim.Optimizer:
    """A built-in optimizer over the parameters that require gradients."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ConfigError("the model has no parameter that requires gradients, so there is nothing to train")
    match config.kind:
        case "adamw":
            return torch.optim.AdamW(
                parameters, lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay
            )
        case "sgd":
            return torch.optim.SGD(parameters, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay)


def load_weights(config: ModelStageFactoryConfig, stages: Sequence[nn.Module], *, fresh: bool) -> tuple[str, ...]:
    """Fill the model from source_checkpoint: everything at a fresh start; before a resume what it may lack.

    Returns:
        Names that the model state has, and these stages do not.
    """
    source, partial = config.source_checkpoint, config.checkpoint_only_trainable_parameters
    if source is None or not (fresh or partial):
        return ()
    # Adapters are new: a base model has none, so they may keep their first values. A resume comes after this.
    trainable = {
        name for name, value in named_tensors(stages) if isinstance(value, nn.Parameter) and value.requires_grad
    }
    mapper = find_mapper(config.source_mapper, source)
    return load_source(source, stages, optional=trainable if partial else (), mapper=mapper)


def warn_of_unread(world: World, unread: Sequence[str]) -> None:
    """Say which weights of source_checkpoint no rank has taken. Collective."""
    told = world.gather(unread)
    left = sorted(set(told[0]).intersection(*told[1:]))
    if left and world.rank == 0:
        more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
        logger.warning("the model has no place for %s%s of source_checkpoint", ", ".join(left[:_SHOWN]), more)


def check_source(config: ModelStageFactoryConfig, *, fresh: bool) -> None:
    """Refuse a source_checkpoint that is needed and not there: a resume of a whole checkpoint needs none."""
    if config.source_checkpoint is not None and (fresh or config.checkpoint_only_trainable_parameters):
        check_state(config.source_checkpoint)
        find_mapper(config.source_mapper, config.source_checkpoint)


def run_folder(config: JobConfig) -> Path:
    """The folder that holds the job's checkpoints."""
    if config.trainer is not None:
        return save_dir(config.trainer.checkpointing.save_dir) / config.trainer.run.name
    if config.inference is not None:
        return save_dir(config.inference.checkpointing.save_dir) / shard_name(config)
    raise ConfigError("the job has neither a trainer nor an inference section")


def outputs_folder(inference: InferenceConfig, config: OutputsConfig) -> Path:
    """The folder of a job's output parts; where faults are tried on it, one beside what it saves then."""
    shard = shard_of(inference)
    return outputs_root(inference, config) / (shard.name if shard else "")


def outputs_root(inference: InferenceConfig, config: OutputsConfig) -> Path:
    """The folder in which all shards of a job have theirs."""
    configured = inference.checkpointing.save_dir
    place = save_dir(configured)
    return Path(config.to) if place == Path(configured) else place / "outputs"


def shard_of(inference: InferenceConfig) -> Shard | None:
    """The part of the input that a job takes; None for all of it."""
    return Shard(inference.shard.index, inference.shard.count) if inference.shard else None


def shard_name(config: JobConfig) -> str:
    """The name of the job's folder in save_dir, where it is a shard; else empty."""
    shard = shard_of(config.inference) if config.inference else None
    return shard.name if shard else ""


def span_of(config: JobConfig, length: int | None) -> tuple[int, int] | None:
    """The first position that a job takes of its input, and the one behind its last; None where that has no length."""
    if length is None:
        return None
    shard = shard_of(config.inference) if config.inference else None
    return shard.bounds(length) if shard else (0, length)


def check_division(inference: InferenceConfig) -> None:
    """Refuse a job that was begun with other shards. Raises ConfigError."""
    shard = shard_of(inference)
    refuse_other_division(save_dir(inference.checkpointing.save_dir), shard)
    if inference.outputs is not None:
        refuse_other_division(outputs_root(inference, inference.outputs), shard)


def export_target(trainer: TrainerConfig, folder: Path) -> Path | None:
    """Where the weights go that lie in this folder: the export of a run is not replaced by that of a line beside it."""
    if trainer.export_to is None:
        return None
    target = Path(trainer.export_to)
    return target if read_origin(folder) is None else target.with_name(target.name + suffix_of(folder.name))


def export_mapper(trainer: TrainerConfig) -> Mapper | None:
    """From the model's names to those of the export. Raises ConfigError where it is no mapper or has no way back."""
    if trainer.export_mapper is None:
        return None
    if trainer.export_mapper != _INVERSE:
        return Mapper.from_yaml(trainer.export_mapper)
    factory = trainer.model_stage_factory
    mapper = find_mapper(factory.source_mapper, factory.source_checkpoint or "")
    return None if mapper is None else mapper.invert()


def side_files(config: ModelStageFactoryConfig) -> str | None:
    """The folder whose configuration and tokenizer go beside exported weights; None where the job knows of none."""
    source = config.source_checkpoint
    return source if source is not None and has_side_files(source) else None


def check_targets(trainer: TrainerConfig, folder: Path, *, fresh: bool) -> None:
    """Refuse now what would fail after days of training. Raises ConfigError."""
    check_source(trainer.model_stage_factory, fresh=fresh)
    if (target := export_target(trainer, folder)) is not None:
        check_target(target)
    export_mapper(trainer)


def check_inference(config: JobConfig, shape: MeshShape, dataset: Any) -> None:
    """Refuse what an inference job cannot do. Raises ConfigError."""
    outputs = config.inference.outputs if config.inference else None
    if outputs is not None:
        check_format(outputs.format, outputs.compression)
        if outputs.on_error == "record" and config.mesh.data_parallel_shard not in (1, "auto"):
            raise ConfigError(
                "outputs.on_error: record needs data_parallel_shard: 1; ranks of a sharded model meet in each pass; "
                "none can make one again by itself"
            )
    if shape.tensor * shape.pipeline > 1:
        raise ConfigError("mesh: the tensor and the pipeline axis of an inference job must be 1")
    if is_stream(dataset):
        raise ConfigError(
            f"providers.dataset = {config.providers.dataset!r}: an inference job needs a data set with "
            "__len__ and __getitem__, so that each input has its place in the output"
        )
    by_length = config.inference.batching.by_length if config.inference is not None else None
    if by_length is not None and not callable(getattr(dataset, "length_of", None)):
        raise ConfigError(
            f"inference.batching.by_length: a {type(dataset).__name__} does not say how long its samples are; give it "
            "a method length_of(index) that reads no sample"
        )
