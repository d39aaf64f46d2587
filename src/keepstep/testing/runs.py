"""Runs a job in fresh processes: a command, or a function on one or several ranks."""

import inspect
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keepstep.errors import TwinCheckError
from keepstep.testing.processes import end_all

_LINES = 15


@dataclass(frozen=True)
class Runner:
    """How to run a job once.

    Attributes:
        job: a function of nothing or of the folder to save to, or the words of a command.
        ranks: processes of a function; a command starts its own.
        timeout: seconds.
        start_method: how the processes of a function are made (see `multiprocessing`).
    """

    job: Callable[..., Any] | Sequence[str]
    ranks: int
    timeout: float
    start_method: str

    def run(self, environment: Mapping[str, str], folder: Path, log: Path) -> None:
        """Run the job to its end; all it prints goes to `log`.

        Raises:
            TwinCheckError: it failed, or took too long.
        """
        codes = self.codes(environment, folder, log)
        if any(code is None for code in codes):
            raise TwinCheckError(f"the job was still running after {self.timeout:g} s. {_last_lines(log)}")
        failed = [code for code in codes if code]
        if failed:
            raise TwinCheckError(f"the job ended with code {failed[0]}. {_last_lines(log)}")

    def codes(self, environment: Mapping[str, str], folder: Path, log: Path) -> list[int | None]:
        """The same, whatever comes of it: the exit code of each process, None for one that took too long.

        Raises:
            TwinCheckError: a command cannot be started.
        """
        deadline = time.monotonic() + self.timeout
        if callable(self.job):
            return self._run_function(self.job, environment, folder, log, deadline)
        return [self._run_command(self.job, environment, log, deadline)]

    def _run_command(
        self, words: Sequence[str], environment: Mapping[str, str], log: Path, deadline: float
    ) -> int | None:
        with log.open("wb") as output:
            try:
                process = subprocess.Popen(
                    list(words),
                    env={**os.environ, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise TwinCheckError(f"cannot start {words[0]}: {error.strerror}; a script needs its python") from error
            try:
                return process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                return None
            finally:
                end_all(process)

    def _run_function(
        self, job: Callable[..., Any], environment: Mapping[str, str], folder: Path, log: Path, deadline: float
    ) -> list[int | None]:
        context = multiprocessing.get_context(self.start_method)
        arguments = [str(folder)] if _takes_folder(job) else []
        port = _free_port()
        processes: list[Any] = []
        for rank in range(self.ranks):
            own = dict(environment)
            if self.ranks > 1:
                own |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self.ranks)}
                own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            processes.append(context.Process(target=_enter, args=(job, arguments, own, str(log))))  # type: ignore[attr-defined]
        log.write_bytes(b"")
        try:
            for process in processes:
                process.start()
            for process in processes:
                process.join(max(0.0, deadline - time.monotonic()))
            return [process.exitcode for process in processes]
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                    process.join()


def _enter(job: Callable[..., Any], arguments: Sequence[str], environment: Mapping[str, str], log: str) -> None:
    os.environ.update(environment)
    # Python's own streams too: a forked process has those of its parent, which may lead elsewhere.
    output = open(log, "a", buffering=1)  # noqa: SIM115 - it lives as long as the process
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    sys.stdout = sys.stderr = output
    job(*arguments)


def _takes_folder(job: Callable[..., Any]) -> bool:
    needed = [p for p in inspect.signature(job).parameters.values() if p.default is p.empty]
    return any(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in needed)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _last_lines(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-_LINES:]
    return "Its last lines:\n  " + "\n  ".join(lines) if lines else "It printed nothing."
