"""Whether a copy of all that a Trainer saves has room in host memory."""

import logging
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from keepstep.dist.world import World
from keepstep.storage.memory import available_bytes

logger = logging.getLogger("keepstep")

_SPARE = 1.1


def lacks_memory(trainer: Any, world: World) -> bool:
    """Whether a rank has too little for a snapshot: then saves are synchronous. Collective; says it once.

    Only the rank that saves copies; memory that an earlier snapshot has taken is not counted twice.
    """
    own = getattr(trainer, "_keepstep_snapshot_bytes", None)
    if own is None:
        own = _bytes_of(trainer) if trainer.args.should_save or trainer.is_fsdp_enabled else 0
        trainer._keepstep_snapshot_bytes = own
        left = available_bytes()
        lacks = left is not None and own * _SPARE > left
        if any(world.gather(lacks)):
            if world.rank == 0:
                logger.warning("saves are synchronous from now on: not enough memory for a copy of %.1f GB", own / 1e9)
            return True
    return False


def _bytes_of(trainer: Any) -> int:
    held = [one for one in trainer.model.parameters() if one.requires_grad or not hasattr(trainer.model, "peft_config")]
    for state in trainer.optimizer.state.values():
        if isinstance(state, dict):
            held += [one for one in state.values() if isinstance(one, torch.Tensor)]
    return sum(one.numel() * one.element_size() for one in map(_own_part, held))


def _own_part(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
