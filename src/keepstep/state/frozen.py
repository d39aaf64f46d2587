"""What a trainable-only checkpoint leaves out, and the proof that it is what the run was begun with."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from keepstep.dcp.digests import digest_tensor
from keepstep.dcp.entries import Entry, Stored
from keepstep.errors import StateError, StateMismatchError
from keepstep.state.component import LoadRequest, under

# `frozen.<fqn>`: the digest of a weight that the checkpoint does not hold, the same under every layout.
FROZEN = "frozen"
_SHOWN = 4


class FrozenRest:
    """Tells held from frozen, keeps digests of what is frozen, and notices when it changes.

    A parameter that was trained once in this run stays held when it is frozen later: its value is in no other place.

    Args:
        with_buffers: hold the buffers.
    """

    def __init__(self, *, with_buffers: bool) -> None:
        self._with_buffers = with_buffers
        self._trained: set[str] = set()
        self._digests: dict[str, tuple[Any, str]] = {}
        self._whole: dict[str, str] = {}

    def prepare(self, values: Mapping[str, Any]) -> None:
        """Digest the frozen weights that are sharded. Collective: a digest that no layout changes needs the whole.

        The ranks of a mesh hold the same names in the same order, so they meet in each.
        """
        held = self.held(values)
        for name, value in values.items():
            if name not in held and isinstance(value, DTensor) and name not in self._whole:
                self._whole[name] = digest_tensor(value.full_tensor())

    def held(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """What the checkpoint holds of these."""
        self._trained |= {n for n, v in values.items() if isinstance(v, nn.Parameter) and v.requires_grad}
        return {
            name: value
            for name, value in values.items()
            if name in self._trained or (self._with_buffers and not isinstance(value, nn.Parameter))
        }

    def collect(self, values: Mapping[str, Any]) -> dict[str, Entry]:
        """The digests of all that is left out.

        A parameter that has changed since the first look was trained in between, and is held from now on.

        Raises:
            StateError: a buffer has changed since then.
        """
        held = self.held(values)
        entries, changed = {}, []
        for name, value in values.items():
            if name in held or not isinstance(value, torch.Tensor):
                continue
            mark = (value.data_ptr() if not isinstance(value, DTensor) else id(value), value._version)
            before = self._digests.get(name)
            # Kernels write buffers (BatchNorm's statistics) without counting a version, so these are always read.
            is_as_before = isinstance(value, nn.Parameter) and before is not None and before[0] == mark
            digest = before[1] if is_as_before and before is not None else digest_tensor(value)
            if before is not None and before[1] != digest:
                if isinstance(value, nn.Parameter):
                    self._trained.add(name)
                    continue
                changed.append(name)
            self._digests[name] = (mark, digest)
            entries[f"{FROZEN}.{name}"] = Entry(self._digest(name, value))
        if changed:
            raise StateError(
                f"{', '.join(changed[:_SHOWN])} changed while the job ran, and a trainable-only checkpoint does not "
                "hold it: hold the buffers too (with_buffers, or checkpoint_buffers of a job), or keep it fixed"
            )
        return entries

    def request(self, values: Mapping[str, Any], stored: Mapping[str, Stored], request: LoadRequest) -> None:
        """Ask for the digests; what the checkpoint holds was trained once, whatever is frozen now."""
        self._trained |= {
            name for name, value in values.items() if f"model.{name}" in stored and isinstance(value, nn.Parameter)
        }
        held = self.held(values)
        keys = under(FROZEN, stored)
        # Also of one that is trained from now on: it begins with its base value, which must be the same.
        request.trees |= {key for key in keys if key.removeprefix(f"{FROZEN}.") in values}
        request.missing += [
            f"{FROZEN}.{name} (the digest of a frozen weight)"
            for name, value in values.items()
            if name not in held and isinstance(value, torch.Tensor) and f"{FROZEN}.{name}" not in keys
        ]

    def check(self, values: Mapping[str, Any], trees: Mapping[str, Any]) -> None:
        """Compare the frozen weights of this job with the digests of those that the run was begun with."""
        changed = []
        for key in (key for key in trees if key.startswith(f"{FROZEN}.")):
            name = key.removeprefix(f"{FROZEN}.")
            then, now = trees[key], self._digest(name, values[name])
            if then and now and then != now:
                changed.append(name)
        if changed:
            raise StateMismatchError(
                f"frozen weights are others than those that the run was begun with: {', '.join(changed[:_SHOWN])}"
                f"{f' and {len(changed) - _SHOWN} more' if len(changed) > _SHOWN else ''}. Load the same base model "
                "before resume()"
            )

    def _digest(self, name: str, value: torch.Tensor) -> str:
        """Of the whole weight; empty for a sharded one that was not frozen when the ranks last met for it."""
        return self._whole.get(name, "") if isinstance(value, DTensor) else digest_tensor(value)
