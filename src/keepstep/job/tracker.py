"""The default tracker: one JSON line for each logged step, in the run's folder."""

import json
import logging
import os
import uuid
from pathlib import Path
from typing import Any

from keepstep.storage.local import make_folders

logger = logging.getLogger("keepstep")


class JsonlTracker:
    """Appends rows to a file. Its state is the run's id and the length of the file, so a resumed run goes on in the
    same file: rows that a crashed attempt wrote after its last save are cut off, and each step stands there once.

    Args:
        path: the file.
        writes: whether this rank writes (the main process).
    """

    def __init__(self, path: Path, *, writes: bool) -> None:
        self._path = path
        self._writes = writes
        self._file: Any = None
        self._restored = False
        self.run_id = uuid.uuid4().hex

    def log(self, row: dict[str, Any]) -> None:
        """Append one row."""
        if not self._writes:
            return
        if self._file is None:
            self._open()
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def state_dict(self) -> dict[str, object]:
        """Run id and length in bytes. What the length counts is on disk when this returns."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
        return {"run_id": self.run_id, "bytes": self._path.stat().st_size if self._has_rows() else 0}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on in the saved run."""
        self.run_id = state["run_id"]
        self._restored = True
        if not self._writes:
            return
        present = self._path.stat().st_size if self._path.exists() else 0
        if present > state["bytes"]:
            os.truncate(self._path, state["bytes"])
        elif present < state["bytes"]:
            logger.warning("%s has lost rows: %d bytes, %d when saved", self._path, present, state["bytes"])

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _has_rows(self) -> bool:
        return self._path.exists() and (self._restored or self._file is not None)

    def _open(self) -> None:
        make_folders(self._path.parent)
        if not self._restored and self._path.exists():
            # A fresh start beside rows of an attempt that never saved: they are another run's.
            number = 1
            while (kept := self._path.with_name(f"{self._path.name}.previous-{number}")).exists():
                number += 1
            self._path.rename(kept)
        self._file = self._path.open("a", encoding="utf-8")
