"""Runs the shards of an inference job as tasks of Ray Data, as many at a time as the cluster has room for.

python examples/ray/infer.py job.yaml --shards 8
"""

import argparse
import logging
import os
from pathlib import Path
from typing import Any


def run_shard(row: dict[str, int], job: str, count: int, folder: str) -> dict[str, Any]:
    """Run a shard to its end. Another task for the same shard goes on where this one died."""
    import keepstep
    from keepstep.config import load_job
    from keepstep.job.inference import InferenceJob
    from keepstep.job.providers import make_importable

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    os.chdir(folder)
    make_importable(Path(job))
    index = row["id"]
    try:
        InferenceJob(load_job(job, [f"inference.shard={{index: {index}, count: {count}}}"])).run()
    except keepstep.KeepstepError as error:
        return {"shard": index, "exit_code": error.exit_code, "error": str(error)}
    return {"shard": index, "exit_code": 0, "error": ""}


def main() -> None:
    import ray

    parser = argparse.ArgumentParser(description="Run the shards of an inference job under Ray Data.")
    parser.add_argument("job", type=Path)
    parser.add_argument("--shards", type=int, required=True)
    parser.add_argument("--cpus", type=float, default=1)
    parser.add_argument("--gpus", type=float, default=0)
    asked = parser.parse_args()
    arguments = {"job": str(asked.job.resolve()), "count": asked.shards, "folder": os.getcwd()}
    # A block for each shard, so that each is a task. Ray makes a task again when its worker or its node is lost.
    shards = ray.data.range(asked.shards, override_num_blocks=asked.shards)
    done = shards.map(run_shard, fn_kwargs=arguments, num_cpus=asked.cpus, num_gpus=asked.gpus)
    rows = done.take_all()
    for row in sorted(rows, key=lambda row: row["shard"]):
        if row["exit_code"]:
            print(f"shard {row['shard']}: {row['error']}")
    raise SystemExit(max(row["exit_code"] for row in rows))


if __name__ == "__main__":
    main()
