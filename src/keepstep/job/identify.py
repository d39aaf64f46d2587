"""Identifies a job: its data, tokenizer, base weights and configuration, before anything of it is built or loaded."""

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from keepstep.checkpoint.fork import Line
from keepstep.checkpoint.identity import RunIdentity, with_dataset
from keepstep.config.job import JobConfig
from keepstep.config.training import ModelStageFactoryConfig
from keepstep.dist.agree import agreed
from keepstep.dist.mesh import MeshShape
from keepstep.dist.world import World
from keepstep.errors import ConfigError
from keepstep.export.source import source_digest
from keepstep.job.asked import Asked
from keepstep.provenance.record import RunFacts
from keepstep.provenance.tokenizer import is_tokenizer, tokenizer_digest
from keepstep.state.streams import is_stream
from keepstep.storage.content import FileDigests, cache_file
from keepstep.storage.lineage import Origin, read_origin

# Where the Hub's cache keeps a revision: models--<owner>--<name>/snapshots/<commit>/
_SNAPSHOT = re.compile(r"(?:^|/)snapshots/([0-9a-f]{7,64})(?:/|$)")


def identify(
    config: JobConfig,
    folder: Path,
    world: World,
    shape: MeshShape,
    dataset: Any,
    task: Any,
    asked: Asked,
    *,
    is_resumed: bool,
    line: Line | None = None,
) -> RunIdentity:
    """Everything that identifies this start of a job. Collective.

    Args:
        config: of the job.
        folder: the run's folder.
        world, shape: the ranks.
        dataset, task: of the job; they may have a `tokenizer`.
        asked: by the command line.
        is_resumed: whether there is a checkpoint: one that holds all weights needs the base weights no more.
        line: of the run that is to be begun from a checkpoint in `folder`.

    Raises:
        ConfigError: source_checkpoint is needed and not there.
        RankFailedError: data or base weights could not be read.
    """
    section = config.trainer or config.inference
    if section is None:
        raise ConfigError("the job has neither a trainer nor an inference section")
    factory = section.model_stage_factory
    facts = RunFacts(
        run_name=(line.fork.name if line else folder.name) if config.trainer else None,
        config=config.model_dump(mode="json"),
        seed=section.determinism.base_seed,
        base_model=factory.source_checkpoint,
        base_revision=revision_of(factory.source_checkpoint),
        global_batch_size=section.batching.global_batch_size,
        mesh={
            "data_parallel_replicate": shape.replicate,
            "data_parallel_shard": shape.shard,
            "tensor_parallel": shape.tensor,
            "pipeline_parallel": shape.pipeline,
        },
        data_parallel=shape.data_parallel,
        # The position in a map-style data set is one number for all ranks; readers of a stream have one each.
        elastic=not is_stream(dataset),
        is_one_pass=config.inference is not None,
    )
    with agreed(world, "identifying data and base weights"):
        if world.rank == 0:
            origin = Origin(folder.name, line.fork.step) if line else read_origin(folder)
            facts = replace(facts, fork_of=origin.text if origin else None)
            facts = _with_content(facts, factory, dataset, task, asked, is_resumed=is_resumed)
    return RunIdentity(folder, world, facts, section.checkpointing, asked.accept)


def revision_of(source: str | None) -> str | None:
    """The revision of a model state that lies in the Hub's cache; None of any other."""
    if source is None:
        return None
    found = _SNAPSHOT.search(str(source)) or _SNAPSHOT.search(str(Path(source).absolute()))
    return found[1] if found else None


def _with_content(
    facts: RunFacts, factory: ModelStageFactoryConfig, dataset: Any, task: Any, asked: Asked, *, is_resumed: bool
) -> RunFacts:
    source = factory.source_checkpoint
    is_needed = not is_resumed or factory.checkpoint_only_trainable_parameters
    if source is not None:
        # Where the checkpoint holds all weights, an empty folder is as good as none.
        with FileDigests(cache_file(), rehash=asked.rehash) as files, suppress(*(() if is_needed else (ConfigError,))):
            facts = replace(facts, base_weights=source_digest(source, files))
    tokenizer = getattr(task, "tokenizer", None)
    if is_tokenizer(tokenizer):
        facts = replace(facts, tokenizer_sha256=tokenizer_digest(tokenizer))
    return with_dataset(facts, dataset, rehash=asked.rehash)
