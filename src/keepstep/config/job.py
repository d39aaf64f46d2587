"""A whole job: mesh, providers, and either a trainer or an inference section."""

import re
from typing import Annotated

from pydantic import BeforeValidator, model_validator

from keepstep.config.base import Section
from keepstep.config.mesh import MeshConfig
from keepstep.config.training import InferenceConfig, TrainerConfig


def _import_path(value: object) -> object:
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", value):
        return value
    raise ValueError("must look like package.module:function")


ImportPath = Annotated[str, BeforeValidator(_import_path)]


class ProvidersConfig(Section):
    """Import paths (`package.module:function`) of the functions that build the parts of the job."""

    model: ImportPath
    dataset: ImportPath
    task: ImportPath
    optimizer: ImportPath | None = None
    lr_scheduler: ImportPath | None = None


class JobConfig(Section):
    """What a job's YAML file says."""

    mesh: MeshConfig = MeshConfig()
    providers: ProvidersConfig
    trainer: TrainerConfig | None = None
    inference: InferenceConfig | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> "JobConfig":
        if (self.trainer is None) == (self.inference is None):
            raise ValueError("needs exactly one of the sections trainer and inference")
        return self
