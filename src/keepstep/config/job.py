"""A whole job: mesh, providers, and either a trainer or an inference section."""

import re
from typing import Annotated

from pydantic import BeforeValidator, Discriminator, Tag, model_validator

from keepstep.config.base import Section
from keepstep.config.data_files import DataFilesConfig
from keepstep.config.mesh import MeshConfig
from keepstep.config.training import InferenceConfig, TrainerConfig


def _import_path(value: object) -> object:
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", value):
        return value
    raise ValueError("must look like package.module:function")


def _form(value: object) -> str:
    return " files" if isinstance(value, dict | DataFilesConfig) else " path"


ImportPath = Annotated[str, BeforeValidator(_import_path)]
# The tags stand in the places of errors, and are left out there: no key of a file begins with a space.
Dataset = Annotated[
    Annotated[ImportPath, Tag(" path")] | Annotated[DataFilesConfig, Tag(" files")], Discriminator(_form)
]


class ProvidersConfig(Section):
    """Import paths (`package.module:function`) of the functions that build the parts of the job.

    Attributes:
        dataset: an import path, or the files of a built-in data set.
    """

    model: ImportPath
    dataset: Dataset
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
