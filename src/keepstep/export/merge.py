"""Full weights of a base and an adapter: what the adapter changes is added while the base streams by."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from keepstep.dcp.regions import Box
from keepstep.errors import ConfigError
from keepstep.export.origin import FilesOrigin, Origin, Wanted, Weight
from keepstep.plan.adapter import AdapterError, Delta, base_name, plan_merge


class MergedOrigin:
    """The base's weights under the base's names, with an adapter in them.

    Args:
        base: the base's weights.
        adapter: the adapter's, under PEFT's names.
        config: PEFT's configuration of the adapter.

    Raises:
        ConfigError: the adapter does not fit the base, or is of a kind that cannot be merged.
    """

    def __init__(self, base: FilesOrigin, adapter: Origin, config: Mapping[str, object], place: str | Path) -> None:
        self._base, self._adapter = base, adapter
        ranks = {name: weight.shape[0] for name, weight in adapter.weights.items()}
        try:
            self._merge = plan_merge(adapter.weights, config, ranks)
        except AdapterError as error:
            raise ConfigError(f"the adapter cannot be merged: {error}") from None
        lacking = sorted({*self._merge.deltas, *self._merge.replaced} - base.weights.keys())
        if lacking:
            raise ConfigError(f"{place} is not the base of this adapter: it has no {', '.join(lacking[:3])}")
        for name, delta in self._merge.deltas.items():
            _check_shape(name, base.weights[name], delta, adapter.weights, place)
        self.weights: dict[str, Weight] = dict(base.weights)
        self._factors: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def fill(self, wanted: Sequence[Wanted]) -> None:
        """Raises as both origins do."""
        replaced = self._merge.replaced
        self._base.fill([one for one in wanted if one[0] not in replaced])
        for name, box, target in wanted:
            if name in replaced:
                self._fill_replaced(replaced[name], box, target)
            elif name in self._merge.deltas:
                self._add(self._merge.deltas[name], box, target)

    def check_frozen(self) -> None:
        """Raises StateMismatchError when the base is not what the run was begun with."""
        self._base.check_frozen()

    def _fill_replaced(self, name: str, box: Box, target: torch.Tensor) -> None:
        part = torch.empty(box.shape, dtype=self._adapter.weights[name].dtype)
        self._adapter.fill([(name, box, part)])
        target.copy_(part)

    def _add(self, delta: Delta, box: Box, target: torch.Tensor) -> None:
        a, b = self._read(delta)
        rows, columns = (slice(at, at + length) for at, length in zip(box.at, box.shape, strict=True))
        part = a[:, rows].T @ b[columns].T if delta.transposed else b[rows] @ a[:, columns]
        target.add_((part * delta.scaling).to(target.dtype))

    def _read(self, delta: Delta) -> tuple[torch.Tensor, torch.Tensor]:
        """Both factors, kept while parts of one weight are asked for."""
        if delta.a not in self._factors:
            self._factors.clear()
            factors = []
            for name in (delta.a, delta.b):
                weight = self._adapter.weights[name]
                whole = torch.empty(weight.shape, dtype=weight.dtype)
                self._adapter.fill([(name, Box((0,) * whole.dim(), weight.shape), whole)])
                factors.append(whole)
            self._factors[delta.a] = factors[0], factors[1]
        return self._factors[delta.a]


def frozen_of_base(frozen: Mapping[str, str]) -> dict[str, str]:
    """Digests of frozen weights by their names in the base."""
    return {base_name(name.replace(".original_module.", ".")): digest for name, digest in frozen.items()}


def _check_shape(name: str, weight: Weight, delta: Delta, factors: Mapping[str, Weight], place: str | Path) -> None:
    inner, outer = factors[delta.a].shape[-1], factors[delta.b].shape[0]
    expected = (inner, outer) if delta.transposed else (outer, inner)
    if weight.shape != expected or len(factors[delta.a].shape) != 2:
        raise ConfigError(f"{place} is not the base of this adapter: {name} is {weight.shape}, and not {expected}")
