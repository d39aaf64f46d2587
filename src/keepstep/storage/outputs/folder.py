"""The folder of a job's outputs: settled at a start, published into after a commit, told of at the end."""

import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from keepstep.errors import ConfigError, DamagedOutputsError
from keepstep.plan.coverage import coverage_of
from keepstep.plan.outputs import (
    INDEX,
    PREVIOUS,
    SUCCESS,
    Part,
    hidden_name,
    in_input_order,
    is_hidden,
    is_part,
    settle,
)
from keepstep.storage.digest import digest_file, digest_of_blocks
from keepstep.storage.json_file import read_json
from keepstep.storage.local import make_folders, replace_text, sync_folder
from keepstep.storage.outputs.index import Head, IndexFile, IndexState, read_head, read_parts

logger = logging.getLogger("keepstep")

_SHOWN = 5
_REMEDY = "put back what is missing, or begin anew with --fresh"


def sizes_in(folder: Path) -> dict[str, int]:
    """Bytes of each of our files in a folder, by name; empty where there is no folder."""
    try:
        with os.scandir(folder) as entries:
            return {e.name: e.stat().st_size for e in entries if is_part(e.name) or is_hidden(e.name)}
    except FileNotFoundError:
        return {}


class OutputFolder:
    """What the main process does in a folder of outputs.

    Args:
        path: the folder.
        head: of this run of the job.
        confirm: raises where another job has taken the run over; called before something is renamed or deleted.
    """

    def __init__(self, path: Path, head: Head, confirm: Callable[[], None] = lambda: None) -> None:
        self.path, self.head, self._confirm = path, head, confirm

    def begin(self, *, replace: bool) -> IndexFile:
        """Begin a run that has no checkpoint.

        Args:
            replace: what an earlier run has left is set aside; otherwise it is an error.

        Raises:
            ConfigError: outputs of another run lie there, which nobody may lose.
        """
        make_folders(self.path)
        self._confirm()
        sizes, found = sizes_in(self.path), read_head(self.path)
        visible = [name for name in sizes if is_part(name)]
        if (self.path / SUCCESS).exists():
            visible.append(SUCCESS)
        if visible and replace:
            self._set_aside([*visible, INDEX])
        elif visible:
            raise ConfigError(
                f"outputs.to: {self.path} holds outputs of another job, or of one whose checkpoints are gone "
                f"({visible[0]}); take another folder, or set them aside with --fresh"
            )
        elif found is not None and found.owner != self.head.owner and sizes:
            raise ConfigError(
                f"outputs.to: a job that saves to {found.owner} writes to {self.path}; take another folder, or delete "
                "this one when that job is gone"
            )
        self._drop([name for name in sizes if is_hidden(name)])
        index = IndexFile(self.path, None)
        index.begin(self.head)
        sync_folder(self.path)
        return index

    def resume(self, state: IndexState, *, is_over: bool) -> IndexFile:
        """Make the folder that of a checkpoint: what it knows is there under its name, and nothing else.

        Args:
            state: of the index, as the checkpoint has it.
            is_over: nothing is left to be done; otherwise an old final manifest does not stand any more.

        Raises:
            ConfigError: the job has another format now.
            DamagedOutputsError: a part is gone or changed, or the folder is another job's. Nothing was changed.
        """
        found = read_head(self.path)
        if found is None:
            raise DamagedOutputsError(f"{self.path / INDEX} is gone, and with it the rows of this job; {_REMEDY}")
        if found.id != self.head.id:
            raise DamagedOutputsError(f"{self.path} holds the outputs of another job; outputs.to must be this job's")
        if found.format != self.head.format:
            raise ConfigError(
                f"outputs.format: the job was begun with {found.format}, and its parts cannot be {self.head.format} now"
            )
        parts = read_parts(self.path, state)
        plan = settle(parts, sizes_in(self.path))
        problems = [*plan.problems, *(f"{part.name} has other bytes" for part in plan.publish if self._differs(part))]
        if problems:
            more = f" and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
            raise DamagedOutputsError(f"{self.path}: {', '.join(problems[:_SHOWN])}{more}; {_REMEDY}")
        self._confirm()
        if not is_over:
            (self.path / SUCCESS).unlink(missing_ok=True)
        self._set_aside(plan.set_aside)
        self._drop(plan.drop)
        # The index last: as long as it names what is not committed, the next start deletes that.
        index = IndexFile(self.path, state)
        index.cut()
        self.publish(plan.publish)
        return index

    def _differs(self, part: Part) -> bool:
        return digest_of_blocks(digest_file(self.path / hidden_name(part.name))[1]) != part.digest

    def publish(self, parts: Sequence[Part]) -> None:
        """Give committed parts their names."""
        if not parts:
            return
        self._confirm()
        for part in parts:
            hidden = self.path / hidden_name(part.name)
            if hidden.exists() or not (self.path / part.name).exists():
                hidden.rename(self.path / part.name)
        sync_folder(self.path)

    def _set_aside(self, names: Sequence[str]) -> None:
        if not names:
            return
        number = 1
        while (target := self.path / f"{PREVIOUS}-{number}").exists():
            number += 1
        target.mkdir()
        for name in names:
            if (self.path / name).exists():
                (self.path / name).rename(target / name)
        sync_folder(target)
        sync_folder(self.path)
        logger.warning("outputs that this run does not go on from were moved to %s", target)

    def _drop(self, names: Sequence[str]) -> None:
        for name in names:
            (self.path / name).unlink(missing_ok=True)

    def finish(self, job: dict[str, Any], inputs: int, state: IndexState) -> dict[str, Any]:
        """Write the final manifest of a job with so many inputs of its own, unless it is there. Returns it.

        Raises:
            DamagedOutputsError: not every input is in one part, once.
        """
        parts = read_parts(self.path, state)
        begin = self.head.share.begin if self.head.share else 0
        if problems := coverage_of(parts, begin + inputs, begin).problems:
            raise DamagedOutputsError(f"{self.path}: {'; '.join(problems)}")
        facts = _success_of(job, inputs, self.head, state, parts)
        if read_json(self.path / SUCCESS) != facts:
            self._confirm()
            replace_text(self.path / SUCCESS, json.dumps(facts, indent=1) + "\n")
        return facts


def _success_of(
    job: dict[str, Any], inputs: int, head: Head, state: IndexState, parts: Sequence[Part]
) -> dict[str, Any]:
    return {
        "version": 1,
        "job": job,
        "outputs": head.id,
        "format": head.format,
        "index": {"bytes": state.bytes, "digest": state.digest},
        "inputs": inputs,
        "rows": sum(part.rows for part in parts if not part.is_errors),
        "errors": sum(part.rows for part in parts if part.is_errors),
        "bytes": sum(part.bytes for part in parts),
        "parts": [part.to_row() for part in in_input_order(parts)],
    }


def is_finished(folder: Path, job: dict[str, Any]) -> bool:
    """Whether a job has written all its outputs. Changes nothing and reads no part.

    Raises:
        DamagedOutputsError: it had, and parts are gone or have another size.
    """
    facts = read_json(folder / SUCCESS)
    if facts.get("job") != job:
        return False
    try:
        parts = [Part.from_row(row) for row in facts["parts"]]
    except (ValueError, KeyError, TypeError):
        return False
    plan = settle(parts, sizes_in(folder))
    if plan.problems:
        more = f" and {len(plan.problems) - _SHOWN} more" if len(plan.problems) > _SHOWN else ""
        raise DamagedOutputsError(f"{folder}: {', '.join(plan.problems[:_SHOWN])}{more}; {_REMEDY}")
    return not plan.publish
