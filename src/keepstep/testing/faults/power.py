"""Power cuts: records what a job does to the disk, builds the states that a cut may leave, and resumes from each."""

import logging
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from keepstep.errors import FaultError
from keepstep.plan import layout
from keepstep.testing.faults.bench import IGNORED, Bench, final_state, judge
from keepstep.testing.faults.crash_states import CrashState, Exchange, Name, Operation, Sync, crash_states
from keepstep.testing.faults.recording import STRACE_OPTIONS, read_recording
from keepstep.testing.runs import Runner

logger = logging.getLogger("keepstep")


@dataclass(frozen=True)
class Recording:
    """What a job did to the disk.

    Attributes:
        operations: of all its ranks, in their order.
        commits: (operations made, step) where a checkpoint had its name, and the folder that holds it was synced.
    """

    operations: tuple[Operation, ...]
    commits: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, operations: Sequence[Operation]) -> "Recording":
        """Finds the commits among operations."""
        commits, waiting = [], list[tuple[int, int, int]]()
        for number, operation in enumerate(operations, 1):
            named = [(operation.folder, operation.name)] if isinstance(operation, Name) else []
            named += [operation.first, operation.second] if isinstance(operation, Exchange) else []
            waiting += [(number, at, step) for at, name in named if (step := layout.step_of(name)) is not None]
            if isinstance(operation, Sync):
                begun = number if operation.begun is None else operation.begun
                durable = [one for one in waiting if one[1] == operation.node and one[0] <= begun]
                commits += [(number, step) for _, _, step in durable]
                waiting = [one for one in waiting if one not in durable]
        return cls(tuple(operations), tuple(commits))

    def committed(self, done: int) -> int:
        """The newest step that was committed when so many operations had been made, 0 when none was."""
        return max([0, *(step for number, step in self.commits if number <= done)])


@dataclass
class PowerReport:
    """What power cuts have done to a job. `bad` is empty for one that can be trusted.

    Attributes:
        operations: how many the job makes.
        states: how many states of the disk it was started from.
        bad: what went wrong, a line for each.
    """

    operations: int = 0
    states: int = 0
    bad: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.states} states of the disk after a power cut ({self.operations} operations), {len(self.bad)} bad"


def materialize(state: CrashState, folder: Path) -> None:
    """Make a folder hold what a power cut has left of it, and nothing else."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path, data in sorted(state.content.items()):
        if data is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(data)


def power_cuts(
    job: Callable[..., Any] | Sequence[str],
    *,
    ranks: int = 1,
    limit: int = 200,
    seed: int = 0,
    ignore: Sequence[str] = (),
    folder: Path | None = None,
    timeout: float = 600,
    start_method: str = "spawn",
) -> PowerReport:
    """Start a job from what power cuts during its saves may leave of them, and compare with a run without any.

    Bad is: a start that fails, one that begins before the newest step that was durably committed, and another final
    state. Small states are needed: each byte that is written is recorded and kept in memory.

    Args:
        job, ranks, ignore, folder, timeout, start_method: as of `crash_matrix`.
        limit: how many states are tried, about (`crash_states` chooses).
        seed: of the choice.

    Raises:
        FaultError: the job fails by itself, commits nothing, or cannot be traced.
        RecordingError: it does something to the disk that the model does not know.
    """
    work = folder or Path(tempfile.mkdtemp(prefix="keepstep-faults-"))
    ignore = (*IGNORED, *ignore)
    try:
        bench = Bench(Runner(job, ranks, timeout, start_method), None)
        reference = work.resolve() / "reference"
        recorded = bench.run(STRACE_OPTIONS, reference)
        recording = Recording.of(read_recording(bench.traces(reference), reference))
        if any(recorded.codes) or not recording.commits:
            raise FaultError(f"the job fails by itself, or commits nothing (codes {recorded.codes}):\n{recorded.log}")
        expected = final_state(reference, ignore)
        report = PowerReport(len(recording.operations))
        for state in crash_states(recording.operations, limit, seed):
            place = work / "state"
            materialize(state, place)
            report.states += 1
            again = bench.run((), place)
            problem = judge(recording.committed(state.done), again, expected, partial(final_state, place, ignore))
            if problem:
                report.bad.append(f"cut after operation {state.done} of {report.operations}: {problem}")
        return report
    finally:
        if folder is None:
            shutil.rmtree(work, ignore_errors=True)
