"""Chooses the loader for a data set, and says before the first step what a resume of it means."""

import logging
from typing import Any

from keepstep.config.training import DataConfig
from keepstep.data.loader import GlobalBatchLoader
from keepstep.data.nodes import is_nodes
from keepstep.data.stream_loader import StreamLoader
from keepstep.errors import ConfigError
from keepstep.plan.batching import Division
from keepstep.state.streams import has_state, is_stream, is_unseeded, samples_at_risk

logger = logging.getLogger("keepstep")

Loader = GlobalBatchLoader | StreamLoader


def make_loader(dataset: Any, division: Division, rank: int, *, seed: int, config: DataConfig) -> Loader:
    """A loader of global batches for a map-style data set or a stream.

    Raises:
        ConfigError: the data set is neither, is too small, or cannot do what the configuration asks for.
    """
    if is_stream(dataset):
        return _stream_loader(dataset, division, rank, seed=seed, config=config)
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise ConfigError(f"a {type(dataset).__name__} has neither __getitem__ and __len__ nor __iter__: no data set")
    if len(dataset) < division.global_batch_size:
        raise ConfigError(
            f"{len(dataset)} samples are fewer than global_batch_size {division.global_batch_size}: a step would take "
            "a sample twice"
        )
    return GlobalBatchLoader(dataset, division, rank, seed=seed, shuffle=config.shuffle, num_workers=config.num_workers)


def _stream_loader(dataset: Any, division: Division, rank: int, *, seed: int, config: DataConfig) -> StreamLoader:
    if config.ledger:
        raise ConfigError("trainer.data.ledger: the samples of a stream have no index that could be noted")
    if is_unseeded(dataset):
        raise ConfigError(
            f"the shuffle() of this {type(dataset).__name__} has no seed=: its order is another at every start, and a "
            "resume would miss samples and repeat others"
        )
    if config.num_workers and is_nodes(dataset):
        raise ConfigError(
            "trainer.data.num_workers: nodes have workers of their own (ParallelMapper), and each worker of the loader "
            "would read all samples once more"
        )
    loader = StreamLoader(
        dataset,
        division,
        rank,
        seed=seed,
        num_workers=config.num_workers,
        persistent_workers=config.persistent_workers,
        resume=config.stream,
    )
    if rank == 0:
        _say_what_a_resume_means(dataset, loader, config)
    return loader


def _say_what_a_resume_means(dataset: Any, loader: StreamLoader, config: DataConfig) -> None:
    kind, lost = type(dataset).__name__, samples_at_risk(dataset)
    if loader.stream.by_state:
        if lost:
            logger.warning(
                "a resume of this %s by its own state is not exact: up to %d samples in its shuffle buffer are lost in "
                "each process that reads it; trainer.data.stream: replay reads them again",
                kind,
                lost,
            )
        return
    if has_state(dataset) and lost and config.stream == "auto":
        why = f"its state does not hold its shuffle buffer ({lost} samples); stream: state is faster and loses them"
    elif has_state(loader.stream.dataset):
        why = "stream: replay is set"
    else:
        why = "it has no state_dict"
    logger.warning(
        "a resume reads this %s again from the begin of its epoch up to the position: exact if it gives the same "
        "samples again, and as slow as reading them (%s)",
        kind,
        why,
    )
