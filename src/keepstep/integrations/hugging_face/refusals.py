"""What a Trainer may be told to do that no checkpoint of it can make good again: refused before anything is trained."""

import os
from typing import Any

from keepstep.errors import ConfigError

# Callbacks that keep weights of their own which no checkpoint holds.
_CALLBACKS = ("BEMACallback",)


def refuse_what_cannot_be_resumed(trainer: Any) -> None:
    """Raises ConfigError that names the setting and what to do."""
    args = trainer.args
    if getattr(args, "save_on_each_node", False) and args.world_size > max(1, _local_world()):
        raise ConfigError(
            "save_on_each_node=True: each node would have a run of its own, and no checkpoint would hold all ranks. "
            "Let output_dir lie on a file system that all nodes see"
        )
    if trainer.is_fsdp_enabled and _transformers_version() < 5:
        raise ConfigError(
            "FSDP under transformers 4: the Trainer does not go on exactly from its own shards (losses differ from the "
            "second step on). Update transformers to 5"
        )
    for callback in trainer.callback_handler.callbacks:
        if type(callback).__name__ in _CALLBACKS:
            raise ConfigError(
                f"{type(callback).__name__} keeps averaged weights that no checkpoint holds: after a resume they would "
                "begin anew, silently. Train without it"
            )


def _transformers_version() -> int:
    import transformers

    return int(transformers.__version__.split(".")[0])


def _local_world() -> int:
    text = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(text) if text.isdecimal() else 1 << 30
