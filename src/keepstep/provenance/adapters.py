"""The configurations of a model's adapters, as PEFT keeps them: without them an adapter's tensors mean nothing."""

import json
from collections.abc import Sequence
from enum import Enum
from typing import Any


def adapter_configs(stages: Sequence[Any]) -> dict[str, Any]:
    """`adapter_config.json` of each adapter by its name; empty for a model without. Wrappers are looked through."""
    found: dict[str, Any] = {}
    for stage in stages:
        for module in (stage, getattr(stage, "module", None), getattr(stage, "_orig_mod", None)):
            held = getattr(module, "peft_config", None)
            if isinstance(held, dict):
                found |= {str(name): _plain(config) for name, config in held.items() if hasattr(config, "to_dict")}
    return found


def _plain(config: Any) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(config.to_dict(), default=_value_of, sort_keys=True))
    return plain


def _value_of(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return sorted(value) if isinstance(value, set | frozenset) else str(value)
