"""The crash matrix of `keepstep.testing.faults` on forked ranks: torch is there already, so a kill costs 0.03 s."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keepstep.storage.survey import survey
from keepstep.testing.faults import CALLS, CrashReport, Kill
from keepstep.testing.faults.calls import committed_step, read_calls
from tests.rig import forks
from tests.rig.syscalls import Tracer, count


@dataclass(frozen=True)
class Subject:
    """What is tried.

    Attributes:
        job: runs or resumes the job in a folder and returns {"start": completed steps, ...final state}.
        newest: the newest step that is committed in a folder.
        check_log: raises when what the attempts logged differs from the reference; called with both folders.
        skips_reads: files that are only opened for reading are no points: on the disk they change nothing.
    """

    job: Callable[[Path], dict[str, Any]]
    newest: Callable[[Path], int]
    check_log: Callable[[Path, Path], None] = lambda reference, folder: None
    skips_reads: bool = False


def newest_complete(folder: Path) -> int:
    """The newest committed step of the tiny job's run in a folder."""
    return max([0, *(c.found.step for c in survey(folder / "tiny").complete)])


def run_matrix(
    subject: Subject, tmp: Path, size: int = 1, rank: int = 0, every: int = 1, *, threads: bool = False
) -> CrashReport:
    """Kill `rank` of `size` at every `every`-th system call of each kind; then resume and compare."""
    reference = tmp / "reference"
    reference.mkdir()
    expected = [without_start(one) for one in forks.values(lambda: subject.job(reference), size)]
    counted, _ = _run(subject, tmp / "counted", size, rank, None, threads)
    assert [one.status for one in counted] == [0] * size
    report = CrashReport.of(count(tmp / f"trace-{rank}"), CALLS)
    kills = report.kills()
    if subject.skips_reads:
        writes = opened_for_writing(tmp / f"trace-{rank}")
        kills = [kill for kill in kills if kill.call != "openat" or kill.n in writes]
    for kill in kills[::every]:
        folder = tmp / f"{kill.call}-{kill.n}"
        ended, committed = _run(subject, folder, size, rank, kill, threads)
        report.points += 1
        report.not_killed += not ended[rank].killed
        problem = resume_problem(subject, folder, max(committed, subject.newest(folder)), reference, expected, size)
        if problem:
            report.bad.append(f"killed at {kill.call} {kill.n} on rank {rank}: {problem}")
    return report


def opened_for_writing(log: Path) -> set[int]:
    """The calls of `openat` that make or change a file, as each thread counts its own."""
    counted, found = Counter[int](), set[int]()
    for call in read_calls(log):
        if call.name == "openat":
            counted[call.thread] += 1
            if any(flag in call.arguments for flag in ("O_CREAT", "O_WRONLY", "O_RDWR")):
                found.add(counted[call.thread])
    return found


def _run(
    subject: Subject, folder: Path, size: int, rank: int, kill: Kill | None, threads: bool
) -> tuple[list[forks.Ended], int]:
    """Run the job with a tracer on one rank, and on the main process: how it ended, and the newest step committed."""
    folder.mkdir()
    ranks = forks.start(lambda: subject.job(folder), size)
    tracers = [
        Tracer(ranks[one], folder.parent / f"trace-{one}", kill if one == rank else None, threads=threads)
        for one in sorted({rank, 0})
    ]
    for one in ranks:
        one.go()
    ended = forks.wait_all(ranks)
    for tracer in tracers:
        tracer.wait()
    return ended, max(committed_step(tracer.log) for tracer in tracers)


def resume_problem(subject: Subject, folder: Path, newest: int, reference: Path, expected: list[Any], size: int) -> str:
    """Start the job once more in a folder that a kill has left; what is wrong then, empty when nothing is."""
    ended = forks.run(lambda: subject.job(folder), size)
    for one in ended:
        if one.error is not None or one.status:
            return f"the resume failed: {one.error!r} (status {one.status})"
        if one.value["start"] != newest:
            return f"resumed from {one.value['start']}, but {newest} was committed"
    if [without_start(one.value) for one in ended] != expected:
        return "another final state"
    try:
        subject.check_log(reference, folder)
    except AssertionError as error:
        return f"another run: {error}"
    return ""


def without_start(value: dict[str, Any]) -> dict[str, Any]:
    """The final state of a job."""
    return {key: part for key, part in value.items() if key != "start"}
