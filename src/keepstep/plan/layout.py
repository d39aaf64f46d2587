"""Names on disk: which names are ours, and what they mean."""

import re
from dataclasses import dataclass

MANIFEST = "manifest.json"
RUN_RECORD = "run.json"
METADATA = ".metadata"
KEEPSTEP_FOLDER = ".keepstep"
# What a loop leaves in a checkpoint that it has scored. It is nobody's content.
SCORE_MARK = ".scored"
QUARANTINE = f"{KEEPSTEP_FOLDER}/quarantine"
SET_ASIDE = f"{KEEPSTEP_FOLDER}/set-aside"

# No leading zeros, no suffix, ASCII digits only: save-007, save-10.bak and save-10x belong to somebody else.
_STEP = r"(0|[1-9][0-9]{0,18})"
_UNCOMMITTED = re.compile(rf"\.(?:save|checkpoint)-{_STEP}\.(tmp|del)-{_STEP}", re.ASCII)
_SAFE_FILE = re.compile(r"[A-Za-z0-9._-]{1,200}", re.ASCII)
_NATIVE_NAME = r"(__[0-9]+(_[0-9]+\.distcp|\.index)|\.metadata|run\.json)"
# The second form is what a process leaves that is killed while it writes to a folder.
_NATIVE_FILE = re.compile(rf"{_NATIVE_NAME}|\.({_NATIVE_NAME}|manifest\.json)\.[0-9]+\.tmp", re.ASCII)
_LONGEST_PATH = 1000


@dataclass(frozen=True)
class Naming:
    """How the checkpoints of a run are called: `<prefix>-<step>`."""

    prefix: str

    def checkpoint_name(self, step: int) -> str:
        """Folder name of the checkpoint of `step` completed steps."""
        return f"{self.prefix}-{step}"

    def step_of(self, name: str) -> int | None:
        """The step in a checkpoint's folder name, None if the name is not one."""
        match = re.fullmatch(rf"{self.prefix}-{_STEP}", name, re.ASCII)
        return int(match[1]) if match else None

    def temporary_name(self, step: int, attempt: int) -> str:
        """Folder name of a save under way."""
        return f".{self.prefix}-{step}.tmp-{attempt}"

    def doomed_name(self, step: int, attempt: int) -> str:
        """Folder name that a checkpoint gets before it is deleted: no half-deleted one can be taken for whole."""
        return f".{self.prefix}-{step}.del-{attempt}"


NATIVE = Naming("save")
# As the Hugging Face Trainer calls its checkpoints, and those who read them look for.
TRAINER = Naming("checkpoint")
NAMINGS = (NATIVE, TRAINER)

checkpoint_name = NATIVE.checkpoint_name
step_of = NATIVE.step_of
temporary_name = NATIVE.temporary_name
doomed_name = NATIVE.doomed_name


def naming_of(name: str) -> Naming | None:
    """How the checkpoint with this folder name is called, None if the name is not one of a checkpoint."""
    return next((naming for naming in NAMINGS if naming.step_of(name) is not None), None)


def any_step_of(name: str) -> int | None:
    """The step in the folder name of a checkpoint, whatever the naming; None if the name is not one."""
    naming = naming_of(name)
    return None if naming is None else naming.step_of(name)


def attempt_of(name: str) -> int | None:
    """The attempt that left an uncommitted folder, None if `name` is not such a folder."""
    match = _UNCOMMITTED.fullmatch(name)
    return int(match[3]) if match else None


def kept_step(name: str) -> int | None:
    """The step of a checkpoint that was moved away under `moved_name`."""
    return any_step_of(name.partition(".")[0])


def moved_name(step: int, attempt: int, number: int = 0, naming: Naming = NATIVE) -> str:
    """Folder name of a checkpoint that was moved away by an attempt; `number` where that moved several of one step."""
    return f"{naming.checkpoint_name(step)}.{attempt}" + (f".{number}" if number else "")


def is_doomed(name: str) -> bool:
    """Whether a folder is a checkpoint whose deletion did not end."""
    match = _UNCOMMITTED.fullmatch(name)
    return match is not None and match[2] == "del"


def shard_name(rank: int, number: int = 0) -> str:
    """File name of a rank's shards."""
    return f"__{rank}_{number}.distcp"


def index_name(rank: int) -> str:
    """File name of the digests of a rank's shard files."""
    return f"__{rank}.index"


def is_native_file(name: str) -> bool:
    """Whether keepstep gives this name to a file of its own checkpoints, the manifest left out."""
    return _NATIVE_FILE.fullmatch(name) is not None


def is_safe_file_name(name: str) -> bool:
    """Whether a name from a manifest or metadata can only mean a file directly in the checkpoint's folder."""
    return _SAFE_FILE.fullmatch(name) is not None and name not in (".", "..")


def is_safe_path(path: str) -> bool:
    """Whether a path from a manifest can only mean a file in the checkpoint's folder or below it."""
    parts = path.split("/")
    return (
        len(path) <= _LONGEST_PATH and path.isprintable() and not any(part in ("", ".", "..") for part in parts)
    ) and "\\" not in path
