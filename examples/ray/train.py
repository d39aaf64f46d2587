"""A job file under Ray Train. Kill workers whenever you like: Ray starts the group again, and the job goes on exactly.

python examples/ray/train.py examples/stdlib_lm/train.yaml --workers 2 --set trainer.total_steps=100
"""

import argparse
import os
from pathlib import Path
from typing import Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from keepstep import KeepstepError, StateError
from keepstep.cli.logs import set_up_logging
from keepstep.config import load_job
from keepstep.job.providers import make_importable
from keepstep.job.train import TrainingJob


def is_final(error: KeepstepError) -> bool:
    """Whether the same job would end by this error again: a refusal, or a stop that somebody has asked for."""
    return error.exit_code != 1 or isinstance(error, StateError)


def train_loop(config: dict[str, Any]) -> dict[str, Any] | None:
    """What each worker runs (`train_loop_per_worker`): the job, in the world that Ray has set up.

    Args:
        config: `job`, the job file; `set`, overrides as of `--set`; `folder`, what relative paths of the job start at.

    Returns:
        None when the training is complete; else why it must not be tried again: `error` and `exit_code`. Returned and
        not raised, since Ray starts the group again for every error, and a refusal would be met `max_failures` times.
    """
    # Ray gives each session a working folder of its own: relative paths would mean another place at each start.
    os.chdir(config["folder"])
    set_up_logging()
    job_file = Path(config["job"])
    make_importable(job_file)
    try:
        TrainingJob(load_job(job_file, config["set"])).run()
    except KeepstepError as error:
        if not is_final(error):
            raise
        return {"error": f"{type(error).__name__}: {error}", "exit_code": error.exit_code}
    return None


def trainer(
    job_file: Path, workers: int | tuple[int, int], overrides: list[str], max_failures: int = 10, **scaling: Any
) -> TorchTrainer:
    """The job on so many workers; a pair is the fewest and the most that it takes (elastic)."""
    return TorchTrainer(
        train_loop,
        train_loop_config={"job": str(job_file.resolve()), "set": overrides, "folder": os.getcwd()},
        torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if scaling.get("use_gpu") else "gloo"),
        scaling_config=ScalingConfig(num_workers=workers, **scaling),
        run_config=RunConfig(
            name=job_file.stem,
            storage_path=str(Path("runs/ray").resolve()),
            failure_config=FailureConfig(max_failures=max_failures),
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Run a keepstep training job under Ray Train.")
    parser.add_argument("job", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--min-workers", type=int, help="start and go on with as few (elastic)")
    parser.add_argument("--use-gpu", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    asked = parser.parse_args()
    # A cluster that is there already (RAY_ADDRESS) is joined; else one starts on this machine.
    ray.init(include_dashboard=False, **({} if "RAY_ADDRESS" in os.environ else {"num_cpus": asked.workers}))
    workers = (asked.min_workers, asked.workers) if asked.min_workers else asked.workers
    outcome = trainer(asked.job, workers, asked.overrides, use_gpu=asked.use_gpu).fit().return_value
    ray.shutdown()
    if outcome:
        print(outcome["error"])
        raise SystemExit(outcome["exit_code"])


if __name__ == "__main__":
    main()
