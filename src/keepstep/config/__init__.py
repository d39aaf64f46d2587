"""What a user may configure, as frozen models. Nothing here acts."""

from keepstep.config.checkpointing import CheckpointingConfig
from keepstep.config.job import JobConfig
from keepstep.config.load import load_job, parse_job

__all__ = ["CheckpointingConfig", "JobConfig", "load_job", "parse_job"]
