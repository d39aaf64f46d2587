"""Which code runs: the commit of the working tree that a job was started in, and what is changed in it."""

import hashlib
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_SECONDS = 20.0


@dataclass(frozen=True)
class Code:
    """A state of a working tree; all None outside of git.

    Attributes:
        commit: the commit that is checked out; None before the first.
        dirty: whether tracked files differ from it.
        diff_sha256: digest (hex) of those files' names and content; None when there are none.
    """

    commit: str | None = None
    dirty: bool | None = None
    diff_sha256: str | None = None


def code_of(folder: Path) -> Code:
    """The code in a folder. Outside of git, without git, or where git does not answer, nothing is known."""
    try:
        top = Path(os.fsdecode(_ask(folder, "rev-parse", "--show-toplevel")).rstrip("\n"))
        commit = os.fsdecode(_ask(top, "rev-parse", "--verify", "HEAD")).strip()
        # Names alone: how a difference is printed depends on a user's settings.
        names = sorted(filter(None, _ask(top, "diff", "--name-only", "-z", "--no-renames", "HEAD").split(b"\0")))
    except (OSError, subprocess.SubprocessError):
        return Code()
    return Code(commit, bool(names), _digest(top, names) if names else None)


def _digest(top: Path, names: Sequence[bytes]) -> str:
    state = hashlib.sha256()
    for name in names:
        state.update(name + b"\0" + hashlib.sha256(_content(os.path.join(os.fsencode(top), name))).digest())
    return state.hexdigest()


def _content(path: bytes) -> bytes:
    if os.path.islink(path):
        return b"link " + os.readlink(path)
    try:
        with open(path, "rb") as file:
            return b"file " + file.read()
    except FileNotFoundError:
        return b"deleted"
    except OSError:
        return b"unreadable"


def _ask(folder: Path, *arguments: str) -> bytes:
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=environment, capture_output=True, timeout=_SECONDS, check=True
    )
    return done.stdout
