"""What a mapper makes of an origin's weights, made when it is asked for."""

from collections import OrderedDict
from collections.abc import Sequence

import torch

from keepstep.dcp.regions import Box
from keepstep.dcp.shards import narrowed
from keepstep.export.mapper import Mapper, stream
from keepstep.export.origin import Origin, Wanted, Weight
from keepstep.plan.mapping import Group, TensorSpec

# Files are in the order of names, and groups are not: parts of a few of them are asked for in turns.
_GROUPS = 4


class MappedOrigin:
    """Weights of an origin under the names and in the shapes that a mapper gives.

    Memory holds the outputs of a few groups of the mapper's plan: those that share a tensor, such as q, k and v.

    Args:
        origin: what the mapper takes.
        mapper: the mapper.

    Raises:
        ConfigError: the mapper does not fit.
    """

    def __init__(self, origin: Origin, mapper: Mapper) -> None:
        self._origin = origin
        self._plan = mapper.plan(specs_of(origin))
        self.weights: dict[str, Weight] = {}
        self._group_of: dict[str, int] = {}
        self._groups: tuple[Group, ...] = self._plan.groups
        for number, group in enumerate(self._groups):
            for output in group.outputs:
                self.weights[output.name] = Weight(getattr(torch, output.spec.dtype), output.spec.shape)
                self._group_of[output.name] = number
        self._made: OrderedDict[int, dict[str, torch.Tensor]] = OrderedDict()

    def fill(self, wanted: Sequence[Wanted]) -> None:
        """Raises as the origin does."""
        for name, box, target in wanted:
            target.copy_(narrowed(self._outputs(self._group_of[name])[name], box))

    def check_frozen(self) -> None:
        """Raises as the origin does."""
        self._origin.check_frozen()

    def _outputs(self, number: int) -> dict[str, torch.Tensor]:
        if number not in self._made:
            if len(self._made) >= _GROUPS:
                self._made.popitem(last=False)
            self._made[number] = dict(stream(self._plan, self.read, [self._groups[number]]))
        self._made.move_to_end(number)
        return self._made[number]

    def read(self, name: str) -> torch.Tensor:
        """A whole tensor of the origin."""
        return read_whole(self._origin, name)


def specs_of(origin: Origin) -> dict[str, TensorSpec]:
    """Shapes and dtypes of an origin's weights, as mappers take them; tied names are there too."""
    found: dict[str, TensorSpec] = {}
    for name, weight in origin.weights.items():
        spec = TensorSpec(weight.shape, str(weight.dtype).removeprefix("torch."))
        found |= dict.fromkeys([name, *weight.names], spec)
    return found


def read_whole(origin: Origin, name: str) -> torch.Tensor:
    """A tensor of an origin, by any of its names."""
    own = name if name in origin.weights else next(n for n, weight in origin.weights.items() if name in weight.names)
    weight = origin.weights[own]
    whole = torch.empty(weight.shape, dtype=weight.dtype)
    origin.fill([(own, Box((0,) * whole.dim(), weight.shape), whole)])
    return whole
