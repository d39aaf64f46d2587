"""What `train` and `infer` share: check first, then run here or start one process for each rank."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from keepstep.cli.asked import words as words_of
from keepstep.errors import ConfigError

if TYPE_CHECKING:
    from keepstep.job.asked import Asked


def run_job(
    kind: Literal["train", "infer"],
    job_file: Path,
    nproc: int,
    overrides: list[str],
    asked: "Asked",
    restarts: int = 0,
) -> None:
    """Run a job. Everything that can be refused is refused before anything starts.

    Args:
        kind: of the job.
        job_file: its configuration.
        nproc: ranks to start here; 1 where a launcher has started them.
        overrides: of values in the file.
        asked: beside the configuration.
        restarts: how often at most it is started again after a failure in training.

    Raises:
        KeepstepError: see `TrainingJob.run` and `InferenceJob.run`.
    """
    # Imports are late: `keepstep ls` does not wait for pydantic, and a wrong job file is refused without torch.
    from keepstep.config.load import load_job

    config = load_job(job_file, overrides)
    launched_world = int(os.environ.get("WORLD_SIZE", "1"))
    is_rank = "RANK" in os.environ
    if is_rank and nproc not in (1, launched_world):
        raise ConfigError(f"--nproc {nproc}: a launcher has started {launched_world} ranks already; leave --nproc out")
    if is_rank and restarts:
        raise ConfigError(
            f"--restarts {restarts}: a launcher has started this rank, and only it can start all of them again "
            "(torchrun --max-restarts); leave --restarts out"
        )
    is_launcher = not is_rank and (nproc > 1 or restarts > 0)

    section = config.trainer or config.inference
    assert section is not None
    stop_signals = section.checkpointing.stop_signals
    notice = None
    if not is_launcher:
        from keepstep.checkpoint.stop import StopNotice

        # From here to the end of the process: a signal that is repeated while Python ends must not change the code.
        notice = StopNotice()
        notice.install(stop_signals)
    from keepstep.job import configure
    from keepstep.job.inference import InferenceJob
    from keepstep.job.providers import make_importable
    from keepstep.job.train import TrainingJob

    make_importable(job_file)
    job = TrainingJob(config) if kind == "train" else InferenceJob(config)
    configure.check(config, launched_world if is_rank else nproc)
    if is_launcher:
        from keepstep.cli.launcher import launch

        words = [kind, str(job_file), *(part for override in overrides for part in ("--set", override))]
        launch([*words, *words_of(asked)], nproc, stop_signals, restarts)
        return
    from keepstep.cli.logs import set_up_logging

    set_up_logging()
    job.run(notice, asked)
