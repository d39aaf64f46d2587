"""How the ranks are arranged."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, model_validator

from keepstep.config.base import Section


def _axis(value: object) -> object:
    if value == "auto" or (type(value) is int and value >= 1):
        return value
    raise ValueError('must be a whole number of ranks, 1 or more, or "auto"')


Axis = Annotated[int | Literal["auto"], BeforeValidator(_axis)]


class MeshConfig(Section):
    """Number of ranks on each axis of the device mesh; one axis may be "auto": what the others leave."""

    data_parallel_replicate: Axis = 1
    data_parallel_shard: Axis = "auto"
    tensor_parallel: Axis = 1
    pipeline_parallel: Axis = 1

    @model_validator(mode="after")
    def _one_auto(self) -> "MeshConfig":
        axes = [name for name, size in self if size == "auto"]
        if len(axes) > 1:
            raise ValueError(f'only one axis may be "auto", not {" and ".join(axes)}')
        return self
