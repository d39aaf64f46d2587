"""Runs `keepstep` in this process or a forked one: a start of Python costs seconds, and most tests need none."""

import contextlib
import io
import logging
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from keepstep.cli.main import main
from tests.rig import forks

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Done:
    """What a command printed, and how it ended."""

    returncode: int
    stdout: str
    stderr: str


def keepstep(*arguments: str, cwd: Path | None = None) -> Done:
    """Run a command line, and put back what it changes in the process."""
    logger, out, err = logging.getLogger("keepstep"), io.StringIO(), io.StringIO()
    kept = logger.level, logger.handlers[:], logger.propagate
    code = 0
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["keepstep", *arguments])
        patch.setattr(sys, "path", sys.path[:])
        patch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)
        patch.setenv("COLUMNS", "200")
        patch.chdir(cwd or os.getcwd())
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        finally:
            logger.setLevel(kept[0])
            logger.handlers, logger.propagate = kept[1], kept[2]
    return Done(code, out.getvalue(), err.getvalue())


def keepstep_forked(*arguments: str, cwd: Path | None = None) -> Done:
    """The same in a process of its own, with all that the processes print which it starts itself."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("stdout", "stderr")]

        def work() -> int:
            for number, file in enumerate(files, 1):
                with file.open("wb") as output:
                    os.dup2(output.fileno(), number)
                setattr(sys, file.name, open(number, "w", buffering=1, closefd=False))  # noqa: SIM115 - to the end
            os.environ.update(PYTHONPATH=f"{ROOT / 'src'}{os.pathsep}{ROOT}", COLUMNS="200")
            os.chdir(cwd or os.getcwd())
            sys.argv = ["keepstep", *arguments]
            try:
                main()
            except SystemExit as end:
                return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
            return 0

        (code,) = forks.values(work, seconds=120)
        return Done(code, *(file.read_text() for file in files))
