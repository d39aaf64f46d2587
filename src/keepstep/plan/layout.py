"""Names on disk: which names are ours, and what they mean."""

import re

MANIFEST = "manifest.json"
RUN_RECORD = "run.json"
METADATA = ".metadata"
KEEPSTEP_FOLDER = ".keepstep"
QUARANTINE = f"{KEEPSTEP_FOLDER}/quarantine"
SET_ASIDE = f"{KEEPSTEP_FOLDER}/set-aside"

# No leading zeros, no suffix, ASCII digits only: save-007, save-10.bak and save-10x belong to somebody else.
_CHECKPOINT = re.compile(r"save-(0|[1-9][0-9]{0,18})", re.ASCII)
_UNCOMMITTED = re.compile(r"\.save-(0|[1-9][0-9]{0,18})\.(tmp|del)-(0|[1-9][0-9]{0,18})", re.ASCII)
_SAFE_FILE = re.compile(r"[A-Za-z0-9._-]{1,200}", re.ASCII)


def checkpoint_name(step: int) -> str:
    """Folder name of the checkpoint of `step` completed steps."""
    return f"save-{step}"


def step_of(name: str) -> int | None:
    """The step in a checkpoint's folder name, None if the name is not one."""
    match = _CHECKPOINT.fullmatch(name)
    return int(match[1]) if match else None


def temporary_name(step: int, attempt: int) -> str:
    """Folder name of a save under way."""
    return f".save-{step}.tmp-{attempt}"


def doomed_name(step: int, attempt: int) -> str:
    """Folder name that a checkpoint gets before it is deleted, so that no half-deleted one can be taken for whole."""
    return f".save-{step}.del-{attempt}"


def attempt_of(name: str) -> int | None:
    """The attempt that left an uncommitted folder, None if `name` is not such a folder."""
    match = _UNCOMMITTED.fullmatch(name)
    return int(match[3]) if match else None


def kept_step(name: str) -> int | None:
    """The step of a checkpoint that was moved away under `moved_name`."""
    return step_of(name.partition(".")[0])


def moved_name(step: int, attempt: int, number: int = 0) -> str:
    """Folder name of a checkpoint that was moved away by an attempt; `number` where that moved several of one step."""
    return f"save-{step}.{attempt}" + (f".{number}" if number else "")


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


def is_safe_file_name(name: str) -> bool:
    """Whether a name from a manifest or metadata can only mean a file directly in the checkpoint's folder."""
    return _SAFE_FILE.fullmatch(name) is not None and name not in (".", "..")
