"""How `train()` ends where the Trainer's own end would do too much."""

import logging
from typing import Any

from transformers.trainer_utils import TrainOutput

from keepstep.dist.world import World

logger = logging.getLogger("keepstep")


def already_complete(trainer: Any, world: World) -> Any:
    """What `train()` returns for a run that is finished: its weights are loaded, and nothing else happens."""
    trainer.is_in_train = False
    if getattr(trainer, "neftune_noise_alpha", None) is not None:
        trainer.neftune_hook_handle.remove()
    if trainer.args.load_best_model_at_end and trainer.state.best_model_checkpoint:
        trainer._load_best_model()
    if world.rank == 0:
        logger.info("Training is already complete, nothing to do (step %d)", trainer.state.global_step)
    loss = next((one["train_loss"] for one in reversed(trainer.state.log_history) if "train_loss" in one), 0.0)
    return TrainOutput(trainer.state.global_step, loss, {"train_loss": loss})


def leave(trainer: Any) -> Any:
    """On a stop there is no time for the best model, and no summary: this is not the end of the run."""
    trainer.control = trainer.callback_handler.on_train_end(trainer.args, trainer.state, trainer.control)
    trainer._finish_current_push()
    trainer.is_in_train = False
    return TrainOutput(trainer.state.global_step, 0.0, {})
