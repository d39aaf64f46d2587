"""Data sets that Hugging Face's `save_to_disk` has written."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keepstep.errors import ConfigError


class SavedDataset:
    """See `keepstep.data.files.hugging_face`.

    Attributes:
        dataset: the `datasets.Dataset`.
        files: its Arrow files, absolute, in order.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        folder = os.path.abspath(path)
        try:
            import datasets
        except ImportError:
            raise ConfigError("data sets of Hugging Face need datasets: pip install datasets") from None
        try:
            self.dataset: Any = datasets.load_from_disk(folder)
        except (FileNotFoundError, ValueError) as error:
            raise ConfigError(f"paths: {folder}: no data set that save_to_disk has written: {error}") from error
        if isinstance(self.dataset, dict):
            splits = ", ".join(sorted(map(str, self.dataset)))
            raise ConfigError(f"paths: {folder} holds several splits; give the folder of one: {splits}")
        state = json.loads(Path(folder, "state.json").read_text(encoding="utf-8"))
        self.files = tuple(os.path.join(folder, file["filename"]) for file in state["_data_files"])

    def data_files(self) -> tuple[str, ...]:
        """What identifies the data set: the content of these files."""
        return self.files

    def collate(self, samples: Sequence[Any]) -> list[Any]:
        """A batch is the list of its records."""
        return list(samples)

    def id_of(self, index: int) -> str:
        """The row's number."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        return str(int(index) % len(self))

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[int(index)]
