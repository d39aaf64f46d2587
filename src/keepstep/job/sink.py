"""A rank's output sink: rows become durable parts before a save, and visible ones after it."""

import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from keepstep.checkpoint.claim import FolderClaim
from keepstep.config.outputs import OutputsConfig
from keepstep.dist.agree import agreed, told_by_all, told_to_main
from keepstep.dist.world import World
from keepstep.errors import SaveError
from keepstep.plan.outputs import Part, Runs, hidden_name, part_name
from keepstep.plan.shards import Share
from keepstep.storage.digest import digest_of_blocks
from keepstep.storage.local import DurableFile, sync_folder
from keepstep.storage.outputs.folder import OutputFolder
from keepstep.storage.outputs.formats import JsonLines, RowBuffer, buffer_for
from keepstep.storage.outputs.index import Head, IndexFile, IndexState

logger = logging.getLogger("keepstep")

# Rows in memory that are written before a save comes, in bytes.
MOST = 64 * 1024 * 1024


class _Pile:
    """Rows of one kind, and their positions."""

    def __init__(self, buffer: RowBuffer, *, is_errors: bool) -> None:
        self.buffer, self.is_errors = buffer, is_errors
        self.runs = Runs()

    def sort(self) -> None:
        """Bring the rows into the order of the input: passes of like length come in another."""
        order = self.runs.sort()
        if order is not None:
            self.buffer.reorder(order)


class OutputSink:
    """Takes the rows of one rank. Its state, the same on all ranks, says how much of the index is committed.

    Args:
        config: of the outputs.
        folder: of the parts.
        owner: the folder of the job's checkpoints.
        world: the ranks.
        claim: on that folder.
        share: of the input, which this job takes; None for all of it.

    Attributes:
        step: the step under way; parts are named after it.
    """

    def __init__(
        self,
        config: OutputsConfig,
        folder: Path,
        owner: Path,
        world: World,
        claim: FolderClaim,
        share: Share | None = None,
    ) -> None:
        self.folder = folder
        self.step = 0
        self._config, self._owner, self._world, self._claim = config, owner, world, claim
        self._share = share
        self._id = world.broadcast(uuid.uuid4().hex)
        self._state = IndexState(0, "")
        self._restored = False
        rows = _Pile(buffer_for(config.format, config.compression), is_errors=False)
        self._piles = (rows, _Pile(JsonLines(), is_errors=True))
        self._number = 0
        self._written: list[Part] = []
        self._on_main: OutputFolder | None = None
        self._index: IndexFile | None = None
        self._unpublished: list[tuple[int, tuple[Part, ...]]] = []

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: whose index, how long it is, and the digest of that much."""
        return {"id": self._id, **asdict(self._state)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint; `begin` settles the folder."""
        self._id = str(state["id"])
        self._state = IndexState(int(state["bytes"]), str(state["digest"]))
        self._restored = True

    def begin(self, *, is_over: bool, replace: bool) -> None:
        """Settle what lies in the folder, before the first step. Collective.

        Args:
            is_over: no step is left.
            replace: what an earlier run has left is set aside at a fresh start.

        Raises:
            ConfigError, DamagedOutputsError, ResumeError: as of `OutputFolder`.
        """
        with agreed(self._world, f"settling the outputs in {self.folder}"):
            if self._world.rank == 0:
                head = Head(self._id, self._config.format, str(self._owner.absolute()), self._share)
                self._on_main = OutputFolder(self.folder, head, self._claim.confirm)
                if self._restored:
                    self._index = self._on_main.resume(self._state, is_over=is_over)
                else:
                    self._index = self._on_main.begin(replace=replace)
        self._state = self._world.broadcast(self._index.state if self._index else self._state)

    def add(self, positions: Sequence[int], rows: Sequence[Mapping[str, Any]], ids: Sequence[Any]) -> None:
        """Take the rows of these positions; each gets its id where it has none.

        Raises:
            TypeError, ValueError: the format cannot hold one of them; none is taken.
        """
        _add(self._piles[0], positions, rows, ids)

    def add_error(self, position: int, row: Mapping[str, Any]) -> None:
        """Take what is noted of a row that failed."""
        _add(self._piles[1], [position], [row], [position])

    def relieve(self) -> None:
        """Write rows now if there are too many in memory. What cannot be written waits for the save, which tells."""
        for pile in self._piles:
            if pile.buffer.bytes >= MOST:
                try:
                    self._write(pile)
                except OSError as error:
                    logger.warning("%s", error)

    def commit(self) -> None:
        """Make all rows durable and the state name them. Collective; called before each save.

        Raises:
            SaveError: a rank could not write. Rows stay where they are, and the next save writes them.
        """
        phase = f"writing outputs to {self.folder}"
        told = told_to_main(self._world, phase, self._flush, SaveError)
        parts = tuple(part for own in told for part in own)
        states = told_by_all(self._world, phase, lambda: self._append(parts), SaveError)
        self._written = []
        self._state = states[0] or self._state

    def _flush(self) -> list[Part]:
        for pile in self._piles:
            if pile.buffer.rows:
                self._write(pile)
        return self._written

    def _append(self, parts: tuple[Part, ...]) -> IndexState | None:
        if self._index is None:
            return None
        if parts:
            self._index.append(parts)
            self._unpublished.append((self.step, parts))
        return self._index.state

    def _write(self, pile: _Pile) -> None:
        rank, attempt = self._world.rank, self._claim.attempt
        suffix = pile.buffer.suffix
        name = part_name(self.step, rank, attempt, self._number, suffix, is_errors=pile.is_errors)
        path = self.folder / hidden_name(name)
        self._number += 1
        pile.sort()
        try:
            with DurableFile(path) as file:
                pile.buffer.write(file)
            sync_folder(self.folder)
        except OSError as error:
            path.unlink(missing_ok=True)
            text = f"{error.strerror}; {pile.buffer.rows} rows stay in memory, and the next save writes them: make room"
            raise OSError(error.errno, text, str(path)) from error
        self._written.append(Part(name, pile.buffer.rows, file.size, digest_of_blocks(file.digests), pile.runs.spans()))
        pile.buffer.clear()
        pile.runs.clear()

    def publish(self, saved_step: int | None) -> None:
        """Give the parts their names that are committed by the checkpoint of `saved_step`. Not collective.

        A name that cannot be given is a warning: the next call, or the next start, gives it.
        """
        if self._on_main is None or saved_step is None:
            return
        due = [one for one in self._unpublished if one[0] <= saved_step]
        try:
            for one in due:
                self._on_main.publish(one[1])
                self._unpublished.remove(one)
        except OSError as error:
            logger.warning("outputs of step %d are committed, and hidden as yet: %s", saved_step, error)

    def finish(self, job: dict[str, Any], inputs: int) -> None:
        """Write the final manifest, when the last step is committed. Collective.

        Args:
            job: identifies the last checkpoint.
            inputs: samples of the job.
        """
        with agreed(self._world, f"finishing the outputs in {self.folder}"):
            if self._on_main is not None:
                self._on_main.publish([part for _, parts in self._unpublished for part in parts])
                self._unpublished = []
                facts = self._on_main.finish(job, inputs, self._state)
                failed = f", {facts['errors']} failed" if facts["errors"] else ""
                logger.info("wrote %d rows to %s%s", facts["rows"], self.folder, failed)


def _add(pile: _Pile, positions: Sequence[int], rows: Sequence[Mapping[str, Any]], ids: Sequence[Any]) -> None:
    pile.buffer.add(rows, ids)
    if positions and list(positions) == list(range(positions[0], positions[0] + len(positions))):
        pile.runs.add(positions[0], len(positions))
        return
    for position in positions:
        pile.runs.add(position)
