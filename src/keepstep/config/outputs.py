"""Where the rows of an inference job go, and what a row that fails means."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from keepstep.config.base import Section

Format = Literal["jsonl", "parquet", "safetensors", "npy"]
Compression = Literal["none", "gzip", "zstd"]


class OutputsConfig(Section):
    """Output parts that are committed with the position.

    Attributes:
        to: the folder of the parts.
        format: of each part.
        compression: of JSON lines as a whole, of Parquet inside the file.
        on_error: what a row does that `predict` fails for: "stop" ends the job, "record" notes it and goes on.
        tries: how often a pass that failed is made again before it counts as failed; with on_error: record.
    """

    to: Annotated[str, Field(min_length=1)]
    format: Format = "jsonl"
    compression: Compression = "none"
    on_error: Literal["stop", "record"] = "stop"
    tries: Annotated[int, Field(strict=True, ge=0)] = 1

    @model_validator(mode="after")
    def _a_folder_that_can_be_written(self) -> "OutputsConfig":
        if "://" in self.to:
            raise ValueError(
                f"to: {self.to} is an address; outputs are written to a local or mounted folder, from where "
                "`keepstep outputs push` copies what is committed"
            )
        if self.compression != "none" and self.format in ("safetensors", "npy"):
            raise ValueError(
                f"compression: {self.compression} does not go with format: {self.format}; arrays are mapped"
            )
        return self
