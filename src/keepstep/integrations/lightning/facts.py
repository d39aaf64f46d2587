"""What a record says of one of Lightning's checkpoints, from its dict; and the run record beside it."""

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

from keepstep.integrations.lightning.write import Facts
from keepstep.provenance.record import RunFacts, collect, to_text

_SEED = "PL_GLOBAL_SEED"


def facts_of(checkpoint: Mapping[str, Any], world_size: int) -> Facts:
    """The facts of a checkpoint that Lightning has made; one without a step counts as of step 0."""
    step = int(checkpoint.get("global_step", 0))

    def run(number: int) -> str:
        seed = os.environ.get(_SEED, "")
        collected = _collected(world_size, int(seed) if seed.isdecimal() else None)
        return to_text(collected, step=step, attempt=number, parent=None)

    return Facts(step, world_size, tuple(sorted(map(str, checkpoint))), run)


@cache
def _collected(world_size: int, seed: int | None) -> dict[str, Any]:
    return collect(RunFacts(seed=seed), world_size)
