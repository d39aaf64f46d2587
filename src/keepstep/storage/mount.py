"""On which file system a folder lies."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from keepstep.plan.durability import Durability, Home, judge_durability

_TABLE = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(r"\\([0-7]{3})")
_MOUNT_ID = re.compile(r"^mnt_id:\s*([0-9]+)$", re.MULTILINE)


@dataclass(frozen=True)
class Mount:
    """One line of a process's table of mounts.

    Attributes:
        number: the kernel's.
        point: where it is mounted.
        root: which folder of the file system is seen there: not "/" for a bind mount or a subvolume.
        kind: type of the file system, such as "ext4" or "fuse.rclone".
        source: device, server or name.
    """

    number: int
    point: str
    root: str
    kind: str
    source: str


def mounts_from_text(text: str) -> tuple[Mount, ...]:
    """Read a table in the format of /proc/self/mountinfo. Lines that are none are left out."""
    found = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        left, right = before.split(" "), after.split(" ")
        if len(left) >= 6 and len(right) >= 2 and left[0].isdecimal():
            found.append(Mount(int(left[0]), _plain(left[4]), _plain(left[3]), right[0], _plain(right[1])))
    return tuple(found)


def choose_mount(mounts: Sequence[Mount], path: str, number: int | None = None) -> Mount | None:
    """Which of these a path lies on: the one that the kernel names, else the deepest; of equals the one on top."""
    for mount in mounts:
        if mount.number == number:
            return mount
    above = [m for m in mounts if path == m.point or path.startswith(m.point.rstrip("/") + "/")]
    return max(reversed(above), key=lambda mount: len(mount.point), default=None)


def mount_of(folder: Path) -> Mount | None:
    """The mount that a folder lies on, or would lie on when it is made; None where the system does not tell."""
    place = existing(folder)
    try:
        mounts = mounts_from_text(_TABLE.read_text(errors="surrogateescape"))
    except OSError:
        return None
    return choose_mount(mounts, str(place), _mount_number(place))


def durability_of(folder: Path) -> Durability:
    """Whether what lies in a folder is lost with the machine, as far as signs tell."""
    mount = mount_of(folder)
    if mount is None:
        return Durability(Home.UNKNOWN)
    return judge_durability(mount.kind, mount.root, os.path.realpath(folder), os.environ)


def volatile(folder: Path) -> str:
    """On what a folder lies that is lost with the machine ("overlay (a container's own layer)"); empty if it is not,
    or nothing says so."""
    return durability_of(folder).volatile


def existing(folder: Path) -> Path:
    """The folder, without links, or the nearest one above it that exists."""
    place = Path(os.path.realpath(folder))
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    return place


def _mount_number(place: Path) -> int | None:
    """The kernel's own word, where a later mount hides an earlier one and names do not tell."""
    try:
        descriptor = os.open(place, os.O_PATH | os.O_CLOEXEC)
    except (OSError, AttributeError):
        return None
    try:
        found = _MOUNT_ID.search(Path(f"/proc/self/fdinfo/{descriptor}").read_text())
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return int(found[1]) if found else None


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)
