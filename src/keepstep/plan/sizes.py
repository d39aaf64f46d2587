"""Sizes in words."""

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def readable_size(size: float) -> str:
    """Bytes in a readable unit: `1.5 GB`."""
    if size < 1000:
        return f"{size:.0f} B"
    for unit in _UNITS[1:-1]:
        size /= 1000
        if size < 1000:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} {_UNITS[-1]}"
