"""Runs `keepstep` in this process: a start of Python costs seconds, and most tests of commands need none."""

import contextlib
import io
import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from keepstep.cli.main import main


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
