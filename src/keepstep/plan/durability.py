"""Whether what is written to a file system is still there when its machine is gone."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

_IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})
_OF_A_CONTAINER = frozenset({"overlay", "overlayfs", "aufs", "fuse.fuse-overlayfs", "squashfs"})
_LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "jfs", "fuseblk"})
_REMOTE = (
    *("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "smbfs", "9p", "virtiofs", "afs", "fuse"),
    *("glusterfs", "pvfs2", "orangefs", "panfs", "wekafs"),
)
# Folders that hosts of notebooks and clusters give to one session or job, with what lies in them and is kept.
_SCRATCH: Mapping[str, tuple[str, ...]] = {
    "/local_scratch": (),
    "/scratch/local": (),
    "/content": ("/content/drive",),
    "/kaggle/working": (),
}
_SCRATCH_VARIABLES = ("SLURM_TMPDIR", "TMPDIR")
_EMPTY_DIR = "/kubernetes.io~empty-dir/"


class Home(Enum):
    """Where a file system keeps what is written to it."""

    MEMORY = "memory"
    CONTAINER = "container"
    NODE = "node"
    REMOTE = "remote"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Durability:
    """What becomes of a folder's content.

    Attributes:
        home: where the bytes are.
        volatile: on what the folder lies that goes with the machine; empty when there is no sign that it does.
    """

    home: Home
    volatile: str = ""


def judge_durability(kind: str, root: str, path: str, environment: Mapping[str, str]) -> Durability:
    """Judge a place. Without a sign that it is lost with the machine it is not called volatile.

    A local disk may well outlive a machine (a volume that is attached again), so it counts as volatile only where a
    scheduler or the host of a notebook gives it to one job or session.

    Args:
        kind: type of the file system, as /proc/self/mountinfo has it.
        root: which folder of it is mounted; tells an emptyDir of Kubernetes from a volume.
        path: the place, absolute, without links.
        environment: variables of the process.
    """
    if kind in _IN_MEMORY:
        return Durability(Home.MEMORY, f"{kind} (memory)")
    if kind in _OF_A_CONTAINER:
        return Durability(Home.CONTAINER, f"{kind} (a container's own layer)")
    if kind in _REMOTE or kind.startswith("fuse."):
        return Durability(Home.REMOTE)
    if kind not in _LOCAL:
        return Durability(Home.UNKNOWN)
    return Durability(Home.NODE, _sign(kind, root, path, environment))


def _sign(kind: str, root: str, path: str, environment: Mapping[str, str]) -> str:
    """What says that a local disk is lost with the machine; empty without a sign."""
    if _EMPTY_DIR in f"{root}/":
        return f"{kind} (an emptyDir volume)"
    for name in _SCRATCH_VARIABLES:
        scratch = environment.get(name, "").rstrip("/")
        if scratch and _is_in(path, scratch):
            return f"a node-local disk ({kind}, ${name})"
    for scratch, kept in _SCRATCH.items():
        if _is_in(path, scratch) and not any(_is_in(path, one) for one in kept):
            return f"a node-local disk ({kind}, {scratch})"
    return f"a node-local disk ({kind}) of a SLURM job" if environment.get("SLURM_JOB_ID") else ""


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")
