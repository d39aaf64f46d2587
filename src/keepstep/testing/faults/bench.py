"""Runs a job again and again, with faults and without, and looks at what it has left."""

import fnmatch
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from keepstep.dcp.digests import digest_tensor, digest_tree
from keepstep.dcp.metadata import read_metadata, stored_keys
from keepstep.dcp.reader import read
from keepstep.errors import FaultError
from keepstep.plan import layout
from keepstep.storage.survey import SurveyedCheckpoint, survey
from keepstep.storage.tracing import TraceSettings
from keepstep.testing.faults.calls import committed_step, traced
from keepstep.testing.faults.faults import RENAMES, Fault, options_of
from keepstep.testing.runs import Runner

# What differs between two runs by its nature.
IGNORED = ("tracker.*",)
# The main process commits: where another rank is hit, it is traced so far that commits are seen.
_COMMITS = ("-e", traced([*RENAMES, "execve"]))


@dataclass(frozen=True)
class Outcome:
    """How a run with a fault ended.

    Attributes:
        codes: exit codes of its processes, negative for signals; None for one that took too long and was ended.
        newest: the newest step whose checkpoint is there, 0 when there is none.
        committed: the newest step that was there or was committed in this run, also if it is gone; where nothing was
            traced, that is `newest`.
        start: the step at which it began; None when it did not come so far.
        log: what it has printed.
    """

    codes: tuple[int | None, ...]
    newest: int
    committed: int
    start: int | None
    log: str


def run_with(
    job: Callable[..., Any] | Sequence[str],
    faults: Sequence[Fault],
    folder: Path,
    *,
    rank: int = 0,
    ranks: int = 1,
    timeout: float = 600,
    start_method: str = "spawn",
) -> Outcome:
    """Run a job once with faults in one of its ranks.

    The job uses a `Checkpointer`, wherever it saves: here it saves to `folder`. Faults count from its `resume()` on,
    and do not come back for ranks that a launcher starts again.

    Args:
        job: a function that trains (it may take the folder), or a command as a list of words.
        faults: what happens; none for an untouched run.
        folder: where it saves.
        rank: whose calls are hit.
        ranks: processes of a function; a command starts its own.
        timeout: seconds.
        start_method: how processes of a function are made.

    Raises:
        FaultError: the command cannot be started, or no such rank came to its `resume()`: nothing happened to it.
    """
    options = options_of(faults) if faults else ()
    bench = Bench(Runner(job, ranks, timeout, start_method), rank)
    ended = bench.run(options, folder)
    if faults:
        bench.require_trace(folder, ended.log)
    return ended


class Bench:
    """Runs one job.

    Args:
        runner: how.
        rank: whose calls are traced, None for those of every rank.
    """

    def __init__(self, runner: Runner, rank: int | None) -> None:
        self._runner, self._rank = runner, rank

    def run(self, options: Sequence[str], folder: Path) -> Outcome:
        """Run it once, with these options of the tracer; with none nothing is traced."""
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.parent.glob(f"{folder.name}.trace.*"):
            old.unlink()
        others = _COMMITS if options and self._rank is not None else ()
        settings = TraceSettings(str(folder), self._rank, tuple(options), str(self.trace(folder)), others)
        log = folder.with_name(f"{folder.name}.log")
        codes = self._runner.codes(settings.to_environment(), folder, log)
        newest = newest_checkpoint(folder)
        step = newest.found.step if newest is not None else 0
        return Outcome(
            codes=tuple(codes),
            newest=step,
            committed=max([step, *(committed_step(trace) for trace in self.traces(folder))]),
            start=_number(Path(f"{self.trace(folder)}.start")),
            log=log.read_text(errors="replace"),
        )

    def require_trace(self, folder: Path, told: str) -> Path:
        """The trace of the rank that is meant. Raises FaultError where the last run in a folder has none."""
        trace = Path(f"{self.trace(folder)}.rank_{self._rank}")
        if not trace.exists():
            raise FaultError(f"no rank {self._rank} of the job was traced: did it come to resume()? It said:\n{told}")
        return trace

    def trace(self, folder: Path) -> Path:
        """The name that traces of the last run in a folder begin with."""
        return folder.with_name(f"{folder.name}.trace")

    def traces(self, folder: Path) -> list[Path]:
        """The traces of the last run in a folder, one for each rank that was traced."""
        return sorted(folder.parent.glob(f"{folder.name}.trace.rank_*"))


def final_state(folder: Path, ignore: Sequence[str] = IGNORED) -> dict[str, str]:
    """The digest of every key of the newest checkpoint below a folder; empty when there is none."""
    newest = newest_checkpoint(folder)
    if newest is None:
        return {}
    keys = {
        key: stored
        for key, stored in stored_keys(read_metadata(newest.path)).items()
        if not any(fnmatch.fnmatch(key, pattern) for pattern in ignore)
    }
    tensors = {key: torch.empty(one.shape or (), dtype=one.dtype) for key, one in keys.items() if one.is_tensor}
    trees = read(newest.path, tensors, [key for key, one in keys.items() if not one.is_tensor])
    digests = {key: digest_tensor(tensor) for key, tensor in tensors.items()}
    return digests | {key: digest_tree(tree) for key, tree in trees.items()}


def newest_checkpoint(folder: Path) -> SurveyedCheckpoint | None:
    """The newest committed checkpoint of all runs below a folder."""
    runs = {path.parent for path in folder.rglob("save-*") if layout.KEEPSTEP_FOLDER not in path.parts}
    complete = [one for run in runs for one in survey(run).complete]
    return max(complete, key=lambda one: one.found.step, default=None)


def judge(committed: int, again: Outcome, expected: dict[str, str], state: Callable[[], dict[str, str]]) -> str:
    """What is wrong with a start after a fault; empty when nothing is.

    Args:
        committed: the newest step that was committed before.
        again: how the start ended.
        expected: the final state of an untouched run.
        state: gives the final state that there is now.
    """
    if any(again.codes):
        return f"the next start failed (codes {again.codes}): {again.log[-500:]}"
    if again.start is not None and again.start < committed:
        return f"it began at step {again.start}, and {committed} was committed"
    found = state()
    differing = [key for key in {**expected, **found} if expected.get(key) != found.get(key)]
    return f"another final state: {', '.join(sorted(differing)[:3])}" if differing else ""


def _number(file: Path) -> int | None:
    """What a file says; None when it is not there, or was not written whole."""
    text = file.read_text() if file.exists() else ""
    return int(text) if text.isdecimal() else None
