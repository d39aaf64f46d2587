"""How much memory a process may still take: what the machine has left, or its control group."""

from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")
_SELF = Path("/proc/self/cgroup")


def available_bytes() -> int | None:
    """Bytes that can be taken without swapping or being killed; None where the system does not tell."""
    bounds = [bound for bound in (_of_machine(), _of_group()) if bound is not None]
    return min(bounds, default=None)


def _of_machine() -> int | None:
    for line in _lines(_MEMINFO):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _of_group() -> int | None:
    """The least that any control group above this process allows. File cache in it can be given back."""
    left = []
    for folder in _groups():
        limit = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
        used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes")
        if limit is None or used is None:
            continue
        cache = 0
        for line in _lines(folder / "memory.stat"):
            name, _, value = line.partition(" ")
            if name in ("inactive_file", "total_inactive_file"):
                cache = max(cache, int(value))
        left.append(max(0, limit - used + cache))
    return min(left, default=None)


def _groups() -> list[Path]:
    folders = []
    for line in _lines(_SELF):
        _, controllers, path = line.split(":", 2)
        base = _CGROUP / "memory" if "memory" in controllers.split(",") else _CGROUP if not controllers else None
        if base is None:
            continue
        place = base / path.strip("/")
        folders += [folder for folder in (place, *place.parents) if folder == base or base in folder.parents]
    return folders


def _number(path: Path) -> int | None:
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []  # not on this system
