"""A data set over files, as a job file describes it."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from keepstep.config.base import Section

Name = Annotated[str, Field(min_length=1)]


class DataFilesConfig(Section):
    """A built-in data set in place of a provider's import path, see `keepstep.data.files`.

    Attributes:
        kind: of the files; "hugging_face" is the folder that `save_to_disk` has written.
        paths: a file, pattern or folder, or a list of these.
        columns: of Parquet files, those that are read; null reads all.
    """

    kind: Literal["jsonl", "parquet", "tar", "hugging_face"]
    paths: Name | Annotated[tuple[Name, ...], Field(min_length=1)]
    columns: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _paths_are_texts(cls, values: Any) -> Any:
        # Told here: of a union each member would complain.
        if not isinstance(values, Mapping) or "paths" not in values:
            return values
        paths = values["paths"]
        texts = [paths] if isinstance(paths, str) else paths
        if (
            not isinstance(texts, list | tuple)
            or not all(isinstance(text, str) and text for text in texts)
            or not texts
        ):
            raise ValueError("paths must be a file, pattern or folder, or a list of these")
        return values

    @model_validator(mode="after")
    def _what_belongs_together(self) -> "DataFilesConfig":
        if self.columns is not None and self.kind != "parquet":
            raise ValueError(f"columns belongs to kind: parquet, not to {self.kind}")
        if self.kind == "hugging_face" and not isinstance(self.paths, str):
            raise ValueError("paths of kind: hugging_face is one folder")
        return self
