"""Which part of the input an inference job takes, where several jobs share one."""

from typing import Annotated

from pydantic import Field, model_validator

from keepstep.config.base import Section


class ShardConfig(Section):
    """A contiguous part of the input. Its checkpoints and its outputs lie in folders of its own.

    Attributes:
        index: of the shard, from 0 on.
        count: of all shards; the same in every job.
    """

    index: Annotated[int, Field(strict=True, ge=0)]
    count: Annotated[int, Field(strict=True, ge=1, le=99_999)]

    @model_validator(mode="after")
    def _one_of_them(self) -> "ShardConfig":
        if self.index >= self.count:
            raise ValueError(f"index: {self.index} is no shard of {self.count}; the last one is {self.count - 1}")
        return self
