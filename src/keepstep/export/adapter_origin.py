"""An adapter's weights in a checkpoint, under the names that PEFT's files have."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keepstep.errors import ConfigError
from keepstep.export.origin import CheckpointOrigin, Wanted, Weight
from keepstep.plan.adapter import AdapterError, adapters_in, peft_names
from keepstep.storage.run_record import read_true_record


class RenamedOrigin:
    """Some weights of a checkpoint under other names.

    Args:
        origin: the checkpoint's weights.
        names: the new name of each that is taken.
    """

    def __init__(self, origin: CheckpointOrigin, names: Mapping[str, str]) -> None:
        self._origin = origin
        self._own = {new: old for old, new in names.items()}
        self.weights: dict[str, Weight] = {new: origin.weights[old] for new, old in self._own.items()}

    def fill(self, wanted: Sequence[Wanted]) -> None:
        """Raises as `CheckpointOrigin.fill`."""
        self._origin.fill([(self._own[name], box, target) for name, box, target in wanted])

    def check_frozen(self) -> None:
        """Every block was compared already."""


def find_adapter(
    checkpoint: Path, adapter: str | None, origin: CheckpointOrigin
) -> tuple[str, dict[str, Any], RenamedOrigin]:
    """An adapter's name, PEFT's configuration of it, and its weights.

    Args:
        checkpoint: the checkpoint.
        adapter: the name; None where there is one only.
        origin: the checkpoint's weights.

    Raises:
        ConfigError: there is none, no such, several, or no configuration of it.
    """
    there = adapters_in(origin.weights)
    if not there:
        raise ConfigError(f"{checkpoint} holds no adapter; `keepstep export` writes its weights")
    if adapter is None and len(there) > 1:
        raise ConfigError(f"{checkpoint} holds the adapters {', '.join(there)}: say which with --adapter")
    name = adapter or there[0]
    if name not in there:
        raise ConfigError(f"{checkpoint} holds no adapter {name!r}; there are: {', '.join(there)}")
    configs = read_true_record(checkpoint).get("adapters")
    config = configs.get(name) if isinstance(configs, dict) else None
    if not isinstance(config, dict):
        raise ConfigError(f"{checkpoint}: run.json has no configuration of the adapter {name!r}, so it cannot be used")
    held = set(origin.weights)
    if not origin.frozen():
        held = {one for one in held if adapters_in([one])}  # a whole checkpoint: of its weights those of adapters
    try:
        names = peft_names(held, name, with_bias=config.get("bias", "none") != "none")
    except AdapterError as error:
        raise ConfigError(f"{checkpoint}: {error}") from None
    return name, config, RenamedOrigin(origin, names)
