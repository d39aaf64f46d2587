"""From the configured axes to a device mesh, and a rank's place on it."""

from dataclasses import dataclass

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from keepstep.config.mesh import MeshConfig
from keepstep.errors import ConfigError

_NOT_YET = ("tensor_parallel", "pipeline_parallel")


@dataclass(frozen=True)
class MeshShape:
    """Ranks on each axis."""

    replicate: int
    shard: int

    @property
    def data_parallel(self) -> int:
        """Ranks that read different samples."""
        return self.replicate * self.shard


def solve_mesh(config: MeshConfig, world_size: int) -> MeshShape:
    """Fill in the "auto" axis. Raises ConfigError when the axes do not make up the world."""
    for axis in _NOT_YET:
        if getattr(config, axis) not in (1, "auto"):
            raise ConfigError(f"mesh.{axis} = {getattr(config, axis)}: only 1 is supported by this version")
    sizes = dict(config)
    fixed = 1
    for size in sizes.values():
        fixed *= 1 if size == "auto" else size
    if world_size % fixed or (fixed != world_size and "auto" not in sizes.values()):
        axes = " x ".join(f"{name} {size}" for name, size in sizes.items())
        raise ConfigError(f"mesh: {axes} does not make up the {world_size} ranks of this job")
    solved = {name: world_size // fixed if size == "auto" else size for name, size in sizes.items()}
    for axis in _NOT_YET:
        if solved[axis] != 1:
            raise ConfigError(f"mesh.{axis} = {solved[axis]}: only 1 is supported by this version")
    return MeshShape(solved["data_parallel_replicate"], solved["data_parallel_shard"])


def make_mesh(shape: MeshShape, device: torch.device) -> DeviceMesh | None:
    """The device mesh of a job; None for a job of one rank. Collective."""
    if shape.data_parallel == 1:
        return None
    return init_device_mesh(
        device.type, (shape.replicate, shape.shard), mesh_dim_names=("data_parallel_replicate", "data_parallel_shard")
    )
