"""The parts of a training job's configuration."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PositiveFloat, field_validator, model_validator

from keepstep.config.base import NoBool, Section
from keepstep.config.checkpointing import CheckpointingConfig
from keepstep.config.outputs import OutputsConfig
from keepstep.config.shard import ShardConfig

# Strict: `true` is no number, and 1.0 no count.
Count = Annotated[int, Field(strict=True, ge=1)]
NonNegativeFloat = Annotated[float, Field(ge=0), NoBool]
Fraction = Annotated[float, Field(ge=0, lt=1), NoBool]


class RunConfig(Section):
    """The name of the run; it is also the name of its folder in save_dir."""

    name: str

    @field_validator("name")
    @classmethod
    def _folder_name(cls, name: str) -> str:
        if not name or name != name.strip() or name.startswith(".") or any(c in '/\\:*?"<>|\0' for c in name):
            raise ValueError('must work as a folder name: not empty, no leading dot, none of / \\ : * ? " < > |')
        return name


class BatchingConfig(Section):
    """Samples in one optimizer step over all ranks, and samples in one forward pass of one rank."""

    global_batch_size: Count
    microbatch_size: Count | None = None


class ByLengthConfig(Section):
    """Micro-batches of samples of like length.

    Attributes:
        budget: the most of one micro-batch: its samples times the longest of their lengths, in the unit of the data
            set's `length_of`.
    """

    budget: Count


class InferenceBatchingConfig(BatchingConfig):
    """The same for inference, where a rank may make passes of any size.

    Attributes:
        by_length: group the samples of a rank's share by length; the micro-batch size is the most of one pass. The
            results are those of the input's order all the same.
    """

    by_length: ByLengthConfig | None = None


class DeterminismConfig(Section):
    """The seed that everything random is derived from."""

    base_seed: Annotated[int, Field(strict=True, ge=0, lt=2**63)] = 0


class ModelStageFactoryConfig(Section):
    """Where the first weights come from and which ones a checkpoint holds.

    Attributes:
        source_checkpoint: a model state: a .safetensors file, a folder that holds one (or an index of several), or a
            checkpoint of keepstep.
        source_mapper: how names and shapes of the model state become those of the model: a YAML file with steps, or
            "auto" for that of the family in the folder's config.json.
        checkpoint_only_trainable_parameters: save only parameters that require gradients; the others are loaded from
            source_checkpoint again at each start.
        checkpoint_buffers: save the buffers too (BatchNorm's statistics change while it trains).
    """

    source_checkpoint: str | None = None
    source_mapper: str | None = None
    checkpoint_only_trainable_parameters: bool = False
    checkpoint_buffers: bool = False

    @model_validator(mode="after")
    def _frozen_parameters_need_a_source(self) -> "ModelStageFactoryConfig":
        if self.checkpoint_only_trainable_parameters and self.source_checkpoint is None:
            raise ValueError(
                "checkpoint_only_trainable_parameters needs source_checkpoint: the frozen parameters come from there"
            )
        if self.source_mapper is not None and self.source_checkpoint is None:
            raise ValueError("source_mapper needs source_checkpoint: there is nothing that it could map")
        return self


class OptimizerConfig(Section):
    """A built-in optimizer and its options; `providers.optimizer` takes its place where it is given."""

    kind: Literal["adamw", "sgd"] = "adamw"
    lr: PositiveFloat = 1e-3
    weight_decay: NonNegativeFloat = 0.01
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    eps: PositiveFloat = 1e-8
    momentum: Fraction = 0.0


class PhaseConfig(Section):
    """One piece of the learning-rate curve: how long it lasts, and the factor of the base rate that it goes to."""

    percent: Annotated[float, Field(ge=0, le=100), NoBool] | None = None
    steps: Annotated[int, Field(strict=True, ge=0)] | None = None
    rest: bool = False
    to: NonNegativeFloat
    curve: Literal["linear", "cosine", "exponential", "constant"] = "linear"

    @model_validator(mode="after")
    def _one_length(self) -> "PhaseConfig":
        if (self.percent is not None) + (self.steps is not None) + self.rest != 1:
            raise ValueError("needs exactly one of percent: <number>, steps: <number>, rest: true")
        if self.curve == "exponential" and self.to == 0:
            raise ValueError("an exponential curve cannot go to 0")
        return self


class LRSchedulerConfig(Section):
    """The learning rate as a factor of the optimizer's base rate; without phases it is constant.

    Attributes:
        initial: the factor at which the first phase begins. By default 0 if that phase is a warm-up (it goes to 1 or
            more), and 1 if it goes down.
        phases: the pieces of the curve, one after the other.
    """

    initial: NonNegativeFloat | None = None
    phases: tuple[PhaseConfig, ...] = ()

    @property
    def begin(self) -> float:
        """The factor at which the first phase begins."""
        if self.initial is not None:
            return self.initial
        return 0.0 if self.phases and self.phases[0].to >= 1 else 1.0

    @model_validator(mode="after")
    def _lengths_add_up(self) -> "LRSchedulerConfig":
        if sum(phase.rest for phase in self.phases) > 1:
            raise ValueError("only one phase may take the rest")
        percent = sum(phase.percent or 0.0 for phase in self.phases)
        if percent > 100.0 + 1e-9:
            raise ValueError(f"the phases add up to {percent:g} percent; 100 is the most")
        return self


class DataConfig(Section):
    """How samples are read.

    Attributes:
        shuffle: a new order for each epoch, drawn from the base seed.
        num_workers: worker processes of each rank; of a map-style data set they change no sample and no random number.
        persistent_workers: keep the workers of a stream from one epoch to the next. Those of a map-style data set live
            as long as the run.
        stream: how a stream (an iterable data set) is resumed: from its own "state"; by "replay", reading the epoch
            again up to the position; "auto" takes the state unless it is known to leave something out.
        ledger: note the samples of each step, for `keepstep audit`; they need an index, which a stream has not.
    """

    shuffle: bool = True
    num_workers: Annotated[int, Field(strict=True, ge=0)] = 0
    persistent_workers: bool = False
    stream: Literal["auto", "state", "replay"] = "auto"
    ledger: bool = False

    @model_validator(mode="after")
    def _workers_that_persist(self) -> "DataConfig":
        if self.persistent_workers and not self.num_workers:
            raise ValueError("persistent_workers needs num_workers, 1 or more")
        return self


class PipelineConfig(Section):
    """How the stages of a pipeline take turns, where mesh.pipeline_parallel is above 1.

    Attributes:
        schedule: of torch.distributed.pipelining; "interleaved_1f1b" for several stages on a rank.
        stages_per_rank: stages of each rank.
    """

    schedule: Literal["1f1b", "gpipe", "interleaved_1f1b"] = "1f1b"
    stages_per_rank: Count = 1

    @model_validator(mode="after")
    def _several_stages(self) -> "PipelineConfig":
        if (self.stages_per_rank > 1) != (self.schedule == "interleaved_1f1b"):
            raise ValueError("stages_per_rank above 1 and schedule: interleaved_1f1b belong together")
        return self


class LoggingConfig(Section):
    """A log line and a row in the tracker every that many steps, and at the last step."""

    period_steps: Count = 10


def _in_one_folder(config: CheckpointingConfig) -> CheckpointingConfig:
    if config.peer_copies:
        raise ValueError("peer_copies: 1 works with a Checkpointer in a loop of your own; jobs do not know it yet")
    return config


SharedCheckpointing = Annotated[CheckpointingConfig, AfterValidator(_in_one_folder)]


class TrainerConfig(Section):
    """A training job.

    Attributes:
        export_to: a folder for the weights at the end, in Hugging Face's layout.
        export_mapper: from the model's names and shapes to those of the export: a YAML file with steps, or "inverse"
            for the way back of `source_mapper`.
    """

    run: RunConfig
    total_steps: Count
    batching: BatchingConfig
    determinism: DeterminismConfig = DeterminismConfig()
    model_stage_factory: ModelStageFactoryConfig = ModelStageFactoryConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    max_gradient_norm: PositiveFloat | None = None
    lr_scheduler: LRSchedulerConfig = LRSchedulerConfig()
    data: DataConfig = DataConfig()
    pipeline: PipelineConfig = PipelineConfig()
    logging: LoggingConfig = LoggingConfig()
    checkpointing: SharedCheckpointing
    export_to: Annotated[str, Field(min_length=1)] | None = None
    export_mapper: Annotated[str, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _a_mapper_needs_its_ends(self) -> "TrainerConfig":
        if self.export_mapper is not None and self.export_to is None:
            raise ValueError("export_mapper needs export_to: nothing is exported")
        if self.export_mapper == "inverse" and self.model_stage_factory.source_mapper is None:
            raise ValueError("export_mapper: inverse is that of model_stage_factory.source_mapper, which is missing")
        return self


class InferenceConfig(Section):
    """An inference job: one pass over the data set in its own order.

    Attributes:
        output_to: a file for the text that the task makes at the end of all that it collected.
        outputs: a folder for rows that are committed with the position, and kept by nobody.
        shard: the part of the input that this job takes, where several jobs share one; None for all of it.
    """

    batching: InferenceBatchingConfig
    determinism: DeterminismConfig = DeterminismConfig()
    model_stage_factory: ModelStageFactoryConfig = ModelStageFactoryConfig()
    num_workers: Annotated[int, Field(strict=True, ge=0)] = 0
    logging: LoggingConfig = LoggingConfig()
    checkpointing: SharedCheckpointing
    output_to: Annotated[str, Field(min_length=1)] | None = None
    outputs: OutputsConfig | None = None
    shard: ShardConfig | None = None

    @model_validator(mode="after")
    def _shards_are_merged(self) -> "InferenceConfig":
        if self.shard is not None and (self.outputs is None or self.output_to is not None):
            raise ValueError("shard goes with outputs, which are merged, and not with output_to")
        return self

    @model_validator(mode="after")
    def _outputs_need_checkpoints(self) -> "InferenceConfig":
        if self.outputs is not None and self.checkpointing.period_steps == "disable":
            raise ValueError('outputs are committed by checkpoints, but checkpointing.period_steps is "disable"')
        return self
