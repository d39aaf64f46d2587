"""How many steps a job has, by its run record."""

from collections.abc import Mapping
from typing import Any


def total_steps_of(record: Mapping[str, Any]) -> int | None:
    """The last step of the job that wrote this run record; None where it does not say."""
    config = record.get("config")
    trainer = config.get("trainer") if isinstance(config, Mapping) else None
    for place in (record, trainer):
        total = place.get("total_steps") if isinstance(place, Mapping) else None
        if type(total) is int and total > 0:
            return total
    return None
