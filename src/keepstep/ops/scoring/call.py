"""Scores a checkpoint by a function: `python -m keepstep.ops.scoring.call package.module:name CHECKPOINT [DATA]`."""

import json
import sys
from importlib import import_module
from pathlib import Path

from keepstep.plan.scores import metrics_from


def main(function: str, checkpoint: str, *data: str) -> None:
    """Call the function and print the metrics that it returns, as the last line."""
    module, _, name = function.partition(":")
    found = import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    metrics = metrics_from(found(Path(checkpoint), *data))  # type: ignore[operator]
    print(f"\n{json.dumps(metrics)}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
