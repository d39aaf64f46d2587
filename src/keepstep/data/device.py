"""Moves batches to a rank's device."""

from typing import Any

import torch


def to_device(data: Any, device: torch.device) -> Any:
    """The same containers (lists, tuples, named tuples, dicts) with all tensors on the device; other values stay."""
    if isinstance(data, torch.Tensor):
        return data.to(device, non_blocking=True)
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(to_device(part, device) for part in data))
    if isinstance(data, list | tuple):
        return type(data)(to_device(part, device) for part in data)
    if isinstance(data, dict):
        return {key: to_device(part, device) for key, part in data.items()}
    return data
