"""The crash matrix: kill a job at every system call, start it again, and judge."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keepstep.storage.survey import survey
from tests.rig import forks
from tests.rig.syscalls import Tracer


@dataclass
class Matrix:
    """What a matrix found. `bad` is empty for a saver that can be trusted."""

    points: int = 0
    not_killed: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)

    def line(self, title: str) -> str:
        kinds = ", ".join(f"{name} {count}" for name, count in sorted(self.calls.items()))
        return f"{title}: {self.points} kills ({kinds}), {self.not_killed} did not kill, {len(self.bad)} bad"


@dataclass(frozen=True)
class Subject:
    """What is tried.

    Attributes:
        job: runs or resumes the job in a folder and returns {"start": completed steps, ...final state}.
        newest: the newest step that is committed in a folder.
        check_log: raises when what the attempts logged differs from the reference; called with both folders.
    """

    job: Callable[[Path], dict[str, Any]]
    newest: Callable[[Path], int]
    check_log: Callable[[Path, Path], None] = lambda reference, folder: None


def newest_complete(folder: Path) -> int:
    """The newest committed step of the tiny job's run in a folder."""
    return max([0, *(c.found.step for c in survey(folder / "tiny").complete)])


def run_matrix(
    subject: Subject, tmp: Path, size: int = 1, rank: int = 0, every: int = 1, *, threads: bool = False
) -> Matrix:
    """Kill `rank` of `size` at every `every`-th system call of each kind; then resume and compare."""
    reference = tmp / "reference"
    reference.mkdir()
    expected = [_without_start(one) for one in forks.values(lambda: subject.job(reference), size)]
    matrix = Matrix(calls=_count_calls(subject, tmp / "counted", size, rank, threads))
    points = [(name, n) for name, count in matrix.calls.items() for n in range(1, count + 1)][::every]
    for name, n in points:
        folder = tmp / f"{name}-{n}"
        folder.mkdir()
        matrix.points += 1
        ranks = forks.start(lambda folder=folder: subject.job(folder), size)
        tracer = Tracer(ranks[rank], tmp / "trace", (name, n), threads=threads)
        for one in ranks:
            one.go()
        ended = forks.wait_all(ranks)
        tracer.counts()
        matrix.not_killed += not ended[rank].killed
        problem = _resume(subject, folder, reference, expected, size)
        if problem:
            matrix.bad.append(f"killed at {name} {n} on rank {rank}: {problem}")
    return matrix


def _count_calls(subject: Subject, folder: Path, size: int, rank: int, threads: bool) -> Counter[str]:
    folder.mkdir()
    ranks = forks.start(lambda: subject.job(folder), size)
    tracer = Tracer(ranks[rank], folder.with_suffix(".trace"), threads=threads)
    for one in ranks:
        one.go()
    assert [one.status for one in forks.wait_all(ranks)] == [0] * size
    return tracer.counts()


def _resume(subject: Subject, folder: Path, reference: Path, expected: list[Any], size: int) -> str:
    newest = subject.newest(folder)
    ended = forks.run(lambda: subject.job(folder), size)
    for one in ended:
        if one.error is not None or one.status:
            return f"the resume failed: {one.error!r} (status {one.status})"
        if one.value["start"] < newest:
            return f"resumed from {one.value['start']}, but {newest} was committed"
    if [_without_start(one.value) for one in ended] != expected:
        return "another final state"
    try:
        subject.check_log(reference, folder)
    except AssertionError as error:
        return f"another run: {error}"
    return ""


def _without_start(value: dict[str, Any]) -> dict[str, Any]:
    return {key: part for key, part in value.items() if key != "start"}
