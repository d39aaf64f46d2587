"""Checkpoints that are folders: those of `ModelParallelStrategy` (FSDP2, tensor parallel), which writes them by DCP.

All ranks write into one temporary folder; rank 0 then reads it once for the digests and lets it take its name.
"""

import os
from functools import partial
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException

from keepstep.errors import ConfigError, SaveError
from keepstep.integrations.lightning.checkpoint_io import local_path, require_good
from keepstep.integrations.lightning.facts import facts_of
from keepstep.integrations.lightning.ranks import on_rank_zero
from keepstep.integrations.lightning.write import Facts, Pending, begin, explained

# Strategies that write or read past the CheckpointIO, in ways of their own.
_UNKNOWN = ("DeepSpeedStrategy", "FSDPStrategy", "SingleDeviceXLAStrategy", "XLAFSDPStrategy", "XLAStrategy")


def require_known(strategy: Any) -> None:
    """Refuse a strategy whose checkpoints cannot be committed and verified.

    Raises:
        ConfigError: with its name.
    """
    for kind in type(strategy).__mro__:
        if kind.__name__ in _UNKNOWN:
            raise ConfigError(
                f"{kind.__name__} writes checkpoints in a way of its own, which keepstep cannot verify; use DDP, or "
                "ModelParallelStrategy for FSDP2"
            )


def install(strategy: Any) -> None:
    """Let a strategy that writes folders write them under a temporary name first. Others stay as they are."""
    if hasattr(strategy, "_save_distributed_checkpoint"):
        strategy.save_checkpoint = partial(_save, strategy)
        strategy.load_checkpoint = partial(_load, strategy)


def _save(strategy: Any, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
    path = local_path(strategy.broadcast(filepath))
    if path is None or not strategy._save_distributed_checkpoint:
        type(strategy).save_checkpoint(strategy, checkpoint, filepath, storage_options)
        return
    # Before the strategy takes the parts out that it writes itself.
    facts = facts_of(checkpoint, strategy.world_size)
    pending = on_rank_zero(strategy, partial(_begin, path))
    failure: OSError | RuntimeError | CheckpointException | None = None
    try:
        type(strategy).save_checkpoint(strategy, checkpoint, pending.scratch, storage_options)
    except (OSError, RuntimeError, CheckpointException) as error:
        failure = error
    strategy.barrier("keepstep: all ranks have written")
    on_rank_zero(strategy, partial(_commit, pending, facts, failure))
    if failure is not None:  # of another rank than 0
        raise failure


def _begin(path: Path) -> Pending:
    with explained(path):
        pending = begin(path)
        pending.scratch.mkdir()
        pending.hold()
        return pending


def _commit(pending: Pending, facts: Facts, failure: BaseException | None) -> None:
    is_done = False
    try:
        if failure is not None:
            raise SaveError(f"{pending.path} could not be saved: {failure}", rank=0, phase="writing") from failure
        with explained(pending.path):
            pending.commit_folder(facts)
        is_done = True
    finally:
        pending.end(is_done)


def _load(strategy: Any, checkpoint_path: Any, weights_only: Any = None) -> Any:
    path = local_path(strategy.broadcast(checkpoint_path))
    if path is not None:
        on_rank_zero(strategy, partial(require_good, path))
    # A link may be moved to another folder between: what was verified is what is loaded.
    real = checkpoint_path if path is None else os.path.realpath(path)
    return type(strategy).load_checkpoint(strategy, real, weights_only)
