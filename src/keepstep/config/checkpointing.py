"""Where and how often a job saves."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from keepstep.config.base import Section

Period = int | Literal["last_step", "disable"]


def _period(value: object) -> object:
    if value in ("last_step", "disable") or (type(value) is int and value >= 1):
        return value
    raise ValueError('must be a whole number of steps, 1 or more, or "last_step", or "disable"')


def _number_to_keep(value: object) -> object:
    if value is None or (type(value) is int and value >= 1):
        return value
    raise ValueError("must be a whole number, 1 or more, or null to keep all")


class CheckpointingConfig(Section):
    """Where and how often a job saves.

    Attributes:
        save_dir: folder of all runs. A training run saves to `<save_dir>/<run.name>/save-<step>`, an inference job to
            `<save_dir>/save-<step>`. With several nodes it must lie on a file system that all of them see.
        period_steps: save every that many steps and at the last step; "last_step": only there; "disable": never.
        num_to_keep: how many checkpoints remain after a save; None keeps all.
        mode: "sync": the job waits until a checkpoint is committed; "async": it goes on as soon as its state is copied
            into host memory, which takes as many bytes a rank as its shard.
        when_busy: what happens in async mode when a save comes due while one is under way: "wait" for it, or "skip"
            the new one (never the last step's, nor that of a stop).
    """

    save_dir: Annotated[str, Field(min_length=1)]
    period_steps: Annotated[Period, BeforeValidator(_period)]
    num_to_keep: Annotated[int | None, BeforeValidator(_number_to_keep)] = None
    mode: Literal["sync", "async"] = "sync"
    when_busy: Literal["wait", "skip"] = "wait"
