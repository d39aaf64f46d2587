"""Carries out a mapping plan tensor by tensor: loads what is needed next, lets go of what is done with."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from keepstep.config.mapper import Shard
from keepstep.errors import ConfigError, StateMismatchError
from keepstep.export.mapper.tensors import apply_operation, spec_of
from keepstep.plan.mapping import Group, MappingPlan, Operation, Value

Reader = Callable[[str], torch.Tensor]


def stream(
    plan: MappingPlan, read: Reader, groups: Iterable[Group] | None = None, mesh: DeviceMesh | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Make the outputs of a plan, one after another.

    Memory holds what one group needs at a time, less what its outputs no longer need: of tensors that are stacked or
    joined, the result and one of them; of a tensor that is taken apart, it and the part that was handed over.

    Args:
        plan: what to do.
        read: gives a source by its name; called once for each, when it is needed.
        groups: the part of `plan.groups` to do; left out, all of them. Ranks that take some each need nothing of each
            other, unless there is a Gather: then all of them take all.
        mesh: where Shard divides tensors; its axes have the names that the steps use.

    Yields:
        Name and tensor. Each tensor is contiguous and has its memory to itself; it may be the one that `read` gave.

    Raises:
        ConfigError: a step divides tensors, and the mesh is missing or lacks its axis. Nothing was read.
        StateMismatchError: `read` gave another shape or dtype than was planned.
    """
    _check_mesh(plan, mesh)
    return _outputs(plan.groups if groups is None else groups, read, mesh)


def _check_mesh(plan: MappingPlan, mesh: DeviceMesh | None) -> None:
    axes = () if mesh is None else mesh.mesh_dim_names or ()
    for operation in plan.operations:
        absent = [axis for axis in operation.step.dims if axis not in axes] if isinstance(operation.step, Shard) else []
        if absent:
            there = f"the device mesh has {', '.join(axes) or 'no named axis'}" if mesh else "there is no device mesh"
            raise ConfigError(f"{operation.at} divides tensors over {absent[0]}, and {there}")


def _outputs(groups: Iterable[Group], read: Reader, mesh: DeviceMesh | None) -> Iterator[tuple[str, torch.Tensor]]:
    for group in groups:
        yield from _Run(group, read, mesh).outputs()


class _Run:
    """A group under way. A value is in memory from when it is made until nobody is left to take it."""

    def __init__(self, group: Group, read: Reader, mesh: DeviceMesh | None) -> None:
        self._group = group
        self._mesh = mesh
        self._read = read
        self._makers: dict[int, Operation] = {one.id: made for made in group.operations for one in made.gives}
        self._takers = Counter(one.id for taker in group.operations for one in taker.takes)
        self._takers.update(one.id for one in group.outputs)
        self._held: dict[int, torch.Tensor] = {}

    @torch.no_grad()
    def outputs(self) -> Iterator[tuple[str, torch.Tensor]]:
        for output in self._group.outputs:
            yield output.name, self._own(self._take(output))

    def _take(self, value: Value) -> torch.Tensor:
        """The tensor of a value, for one of its takers; the last one is the only one that has it then."""
        if value.id not in self._held:
            self._make(value)
        self._takers[value.id] -= 1
        return self._held[value.id] if self._takers[value.id] else self._held.pop(value.id)

    def _make(self, value: Value) -> None:
        maker = self._makers.get(value.id)
        if maker is None:
            self._held[value.id] = self._load(value)
            return
        made = apply_operation(maker, (self._take(one) for one in maker.takes), self._mesh)
        for given, tensor in zip(maker.gives, made, strict=True):
            if self._takers[given.id]:
                self._held[given.id] = tensor

    def _load(self, value: Value) -> torch.Tensor:
        tensor = self._read(value.name)
        if spec_of(tensor) != value.spec:
            raise StateMismatchError(f"{value.name} is {spec_of(tensor)}, planned was {value.spec}")
        return tensor.detach()

    def _own(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, DTensor):
            local = self._own(tensor.to_local())
            whole: dict[str, Any] = {"shape": tensor.shape, "stride": tensor.stride()}
            return DTensor.from_local(local, tensor.device_mesh, tensor.placements, run_check=False, **whole)
        memory = tensor.untyped_storage()
        held = (_local(other).untyped_storage().data_ptr() for other in self._held.values())
        shared = memory.nbytes() != tensor.nbytes or memory.data_ptr() in held
        return tensor.clone(memory_format=torch.contiguous_format) if shared else tensor.contiguous()


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
