"""From the configured axes to a device mesh, and a rank's place on it."""

from dataclasses import dataclass

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from keepstep.config.mesh import MeshConfig
from keepstep.errors import ConfigError

PIPELINE, REPLICATE, SHARD, TENSOR = (
    "pipeline_parallel",
    "data_parallel_replicate",
    "data_parallel_shard",
    "tensor_parallel",
)


@dataclass(frozen=True)
class Place:
    """Where a rank stands: its data-parallel rank, and its numbers on the tensor and the pipeline axis."""

    data: int
    tensor: int
    pipeline: int


@dataclass(frozen=True)
class MeshShape:
    """Ranks on each axis."""

    replicate: int
    shard: int
    tensor: int = 1
    pipeline: int = 1

    @property
    def data_parallel(self) -> int:
        """Ranks that read different samples."""
        return self.replicate * self.shard

    @property
    def size(self) -> int:
        """All ranks."""
        return self.data_parallel * self.tensor * self.pipeline

    def place_of(self, rank: int) -> Place:
        """A rank's place. Ranks that stand side by side on the tensor axis have neighbouring numbers."""
        rest, tensor = divmod(rank, self.tensor)
        pipeline, data = divmod(rest, self.data_parallel)
        return Place(data, tensor, pipeline)


def solve_mesh(config: MeshConfig, world_size: int) -> MeshShape:
    """Fill in the "auto" axis. Raises ConfigError when the axes do not make up the world."""
    sizes = dict(config)
    fixed = 1
    for size in sizes.values():
        fixed *= 1 if size == "auto" else size
    if world_size % fixed or (fixed != world_size and "auto" not in sizes.values()):
        axes = " x ".join(f"{name} {size}" for name, size in sizes.items())
        raise ConfigError(f"mesh: {axes} does not make up the {world_size} ranks of this job")
    solved = {name: world_size // fixed if size == "auto" else size for name, size in sizes.items()}
    return MeshShape(solved[REPLICATE], solved[SHARD], solved[TENSOR], solved[PIPELINE])


def make_mesh(shape: MeshShape, device: torch.device) -> DeviceMesh | None:
    """The device mesh of a job, (pipeline, replicate, shard, tensor); None for a job of one rank. Collective."""
    if shape.size == 1:
        return None
    sizes = (shape.pipeline, shape.replicate, shape.shard, shape.tensor)
    return init_device_mesh(device.type, sizes, mesh_dim_names=(PIPELINE, REPLICATE, SHARD, TENSOR))
