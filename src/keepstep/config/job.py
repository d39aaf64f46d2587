"""A whole job: mesh, providers, and either a trainer or an inference section."""

from typing import Annotated

from pydantic import Field, model_validator

from keepstep.config.base import Section
from keepstep.config.mesh import MeshConfig
from keepstep.config.training import InferenceConfig, TrainerConfig

ImportPath = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")]


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
