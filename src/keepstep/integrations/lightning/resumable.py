"""Makes a Trainer save through `VerifiedCheckpointIO`, and go on from the newest checkpoint that is good.

`ckpt_path="last"` is looked up when the ranks have met, and not before as Lightning does it: rank 0 looks, and tells.
"""

import logging
import os
from functools import partial
from typing import Any

from keepstep.errors import ConfigError
from keepstep.integrations.lightning import folders
from keepstep.integrations.lightning.checkpoint_io import Verified, checkpoint_io_class, local_path
from keepstep.integrations.lightning.choose import newest_in, unrecorded_in
from keepstep.integrations.lightning.packages import package_of, part
from keepstep.integrations.lightning.ranks import on_rank_zero

logger = logging.getLogger("keepstep")

_LAST = "last"


class Last(str):
    """`ckpt_path="last"` on its way to where it is looked up."""


def make_resumable(trainer: Any) -> None:
    """Let a Trainer commit and verify its checkpoints, and let `ckpt_path="last"` mean the newest good one.

    Call it before `fit`. A second call changes nothing.

    Raises:
        ConfigError: it is no Trainer of Lightning's, or it saves in a way that keepstep cannot verify.
    """
    package = package_of(trainer)
    connector = trainer._checkpoint_connector
    if "resume_start" in vars(connector):
        return
    missing = [name for name in ("_parse_ckpt_path", "resume_start", "resume_end") if not hasattr(connector, name)]
    if missing:
        raise ConfigError(
            f"this version of {package} is not known ({missing[0]} is gone); use one of 2.6, or update keepstep"
        )
    folders.require_known(trainer.strategy)
    _install(trainer.strategy, package)
    folders.install(trainer.strategy)
    # Partials of functions: a Trainer is pickled where ranks are spawned.
    connector._parse_ckpt_path = partial(_parse, connector)
    connector.resume_start = partial(_start, connector)
    connector.resume_end = partial(_end, connector)


def _install(strategy: Any, package: str) -> None:
    present = strategy._checkpoint_io
    wrapper = None
    while present is not None and hasattr(present, "_base_checkpoint_io_configured"):
        wrapper, present = present, present._checkpoint_io
    if present is None or type(present) is part(package, "plugins.io").TorchCheckpointIO:
        present = checkpoint_io_class(package)()
        if wrapper is None:
            strategy.checkpoint_io = present
        else:
            wrapper._checkpoint_io, wrapper._base_checkpoint_io_configured = present, True
            if wrapper is not strategy._checkpoint_io:
                strategy._checkpoint_io._base_checkpoint_io_configured = True
    if not isinstance(present, Verified):
        raise ConfigError(
            f"the Trainer saves by {type(present).__name__}, which keepstep cannot verify; leave it out, or build on "
            "keepstep.integrations.lightning.VerifiedCheckpointIO"
        )
    if hasattr(wrapper, "_executor"):
        present.writer = wrapper


def _parse(connector: Any, state_fn: Any, ckpt_path: Any, model_provided: bool, model_connected: bool) -> Any:
    if ckpt_path != _LAST:
        return type(connector)._parse_ckpt_path(connector, state_fn, ckpt_path, model_provided, model_connected)
    trainer = connector.trainer
    for callback in trainer.checkpoint_callbacks:
        if getattr(callback, "dirpath", "") is None and trainer.loggers and trainer.is_global_zero:
            logger.warning(
                'ckpt_path="last" is asked for, and ModelCheckpoint has no dirpath: with a logger each start may get a '
                "new folder, in which there is nothing yet; give ModelCheckpoint(dirpath=...)"
            )
    return Last(_LAST)


def _start(connector: Any, checkpoint_path: Any = None, weights_only: Any = None) -> None:
    if isinstance(checkpoint_path, Last):
        checkpoint_path = on_rank_zero(connector.trainer.strategy, lambda: _last(connector))
    type(connector).resume_start(connector, checkpoint_path, weights_only=weights_only)


def _end(connector: Any) -> None:
    trainer, path = connector.trainer, connector._ckpt_path
    type(connector).resume_end(connector)
    if trainer.state.fn != "fit" or not trainer.is_global_zero:
        return
    if path:
        logger.info("resumed from step %d (%s)", trainer.global_step, path)
    else:
        logger.info("starting from the first step")


def _last(connector: Any) -> Any:
    """The path to go on from, None for a fresh start."""
    places = dict.fromkeys(
        os.fspath(place)
        for callback in connector.trainer.checkpoint_callbacks
        if (place := getattr(callback, "dirpath", None)) is not None
    )
    local = [path for place in places if (path := local_path(place)) is not None]
    foreign = [path for folder in local for path in unrecorded_in(folder)]
    if foreign:
        logger.warning("%s was not written by keepstep and is not looked at; it can be given as ckpt_path", foreign[0])
    chosen = newest_in(local)
    if chosen is not None:
        return os.fspath(chosen)
    if foreign or len(local) < len(places):
        logger.warning("there is no checkpoint with a record of keepstep's; Lightning's own rule decides, unverified")
        return type(connector)._parse_ckpt_path(connector, connector.trainer.state.fn, _LAST, True, True)
    return None
