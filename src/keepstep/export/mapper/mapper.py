"""A model state mapper: between the names and shapes of a file and those of a model, in both directions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh

from keepstep.config.mapper import Composite, Leaf
from keepstep.config.mapper_file import load_mapper
from keepstep.export.mapper.stream import Reader, stream
from keepstep.export.mapper.tensors import spec_of
from keepstep.plan.mapping import MappingPlan, TensorSpec
from keepstep.plan.mapping_inverse import invert
from keepstep.plan.mapping_steps import plan_mapping


@dataclass(frozen=True)
class Mapper:
    """Declared steps (see `keepstep.config.mapper`), applied one after another.

    Attributes:
        steps: the declarations.
    """

    steps: tuple[Leaf | Composite, ...]

    @classmethod
    def from_yaml(cls, path: str | Path) -> "Mapper":
        """Read a mapper from a file with `steps`. Raises ConfigError, a line for each problem."""
        return cls(load_mapper(path).steps)

    def invert(self) -> "Mapper":
        """The mapper that undoes this one, bit for bit. Raises ConfigError where a step cannot be undone."""
        return Mapper(invert(self.steps))

    def plan(self, specs: Mapping[str, TensorSpec]) -> MappingPlan:
        """What becomes of tensors like these, before any of them moves. Printed, it has a line for each output.

        Raises:
            ConfigError: a line for each name that is unread, made twice or missing, each shape or dtype that does not
                fit, and steps that need each other in a circle.
        """
        return plan_mapping(self.steps, specs)

    def stream(
        self, specs: Mapping[str, TensorSpec], read: Reader, mesh: DeviceMesh | None = None
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Plan, at once, and then make output after output: see `keepstep.export.mapper.stream.stream`."""
        return stream(self.plan(specs), read, mesh=mesh)

    def apply(self, tensors: Mapping[str, torch.Tensor], mesh: DeviceMesh | None = None) -> dict[str, torch.Tensor]:
        """Map a model state that is in memory. Outputs may be tensors of the input. Raises as `plan`."""
        specs = {name: spec_of(tensor) for name, tensor in tensors.items()}
        return dict(self.stream(specs, tensors.__getitem__, mesh))
