"""Reads what strace has written: an entry for each system call, also where threads have interrupted each other."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from keepstep.plan import layout

# A leading "?" tells strace that a machine may lack the call: on ARM there is no rename, link, unlink, mkdir, rmdir.
_OPTIONAL = "?"
_LINE = re.compile(
    r"(?:(?P<thread>\d+) +)?(?:(?P<time>\d+\.\d+) )?(?:(?P<name>\w+)\(|<\.\.\. (?P<resumed>\w+) resumed>)(?P<rest>.*)",
    re.DOTALL,
)
_END = re.compile(r"(?P<arguments>.*)\) += (?P<result>-?\d+|\?)(?P<tail>.*?)(?:<(?P<seconds>\d+\.\d+)>)?", re.DOTALL)
_UNFINISHED = " <unfinished ...>"
_PATH = re.compile(r'"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Call:
    """A system call.

    Attributes:
        thread: who made it; 0 where only one thread was traced.
        name, arguments: as strace writes them.
        result: what it returned; None when it never did, since the process was killed.
        begun, ended: seconds; 0 where no times were recorded.
    """

    thread: int
    name: str
    arguments: str
    result: int | None
    begun: float
    ended: float


def traced(calls: Iterable[str]) -> str:
    """The set of calls that a tracer is to look at, as an option of strace."""
    return "trace=" + ",".join(f"{_OPTIONAL}{name}" for name in dict.fromkeys(calls))


def read_calls(log: Path) -> list[Call]:
    """The calls in a log of strace, in the order in which they began. No log: no calls."""
    found: list[Call] = []
    open_calls: dict[int, tuple[float, str, str]] = {}
    for line in log.read_text(errors="replace").split("\n") if log.exists() else []:
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        thread, time, name, rest = int(match["thread"] or 0), float(match["time"] or 0), match["name"], match["rest"]
        if name is None:  # the end of a call that another thread's lines have interrupted
            begun, name, head = open_calls.pop(thread, (time, match["resumed"], ""))
            rest = head + rest.removeprefix(" ") if rest.startswith(" )") else head + rest
        else:
            begun = time
        if rest.endswith(_UNFINISHED):
            open_calls[thread] = (begun, name, rest.removesuffix(_UNFINISHED))
            continue
        end = _END.fullmatch(rest)
        if end is None:  # the last line of a process that was killed
            found.append(Call(thread, name, rest, None, begun, begun))
            continue
        result = None if end["result"] == "?" else int(end["result"])
        found.append(Call(thread, name, end["arguments"], result, begun, begun + float(end["seconds"] or 0)))
    found += [Call(thread, name, head, None, begun, begun) for thread, (begun, name, head) in open_calls.items()]
    return sorted(found, key=lambda call: call.begun)


def count_calls(log: Path) -> Counter[str]:
    """How often a traced process made each call: the most that one of its threads did, since strace counts so.

    Programs that it started (git) are followed by a tracer like its threads, and do not count.
    """
    calls = read_calls(log)
    found = Counter((call.thread, call.name) for call in calls)
    programs = {thread for thread, name in found if name == "execve"}
    most: Counter[str] = Counter()
    for (thread, name), count in found.items():
        if thread not in programs:
            most[name] = max(most[name], count)
    return most


def committed_step(log: Path) -> int:
    """The newest step whose folder got its final name during the calls of a log, 0 if none did.

    What lies on the disk afterwards does not tell: a saver that deletes before it commits leaves nothing to find.
    """
    steps = {0}
    for call in read_calls(log):
        if call.name not in ("rename", "renameat", "renameat2") or call.result != 0:
            continue
        paths = _PATH.findall(call.arguments)
        old, new = (layout.any_step_of(path.rpartition("/")[2]) for path in paths[-2:])
        if ".tmp-" in paths[-1]:  # its folder could not be synced: taken back
            if old is not None and ".tmp-" not in paths[-2]:
                steps.discard(old)
        elif new is not None:
            steps.add(new)
    return max(steps)
