"""What an argument names: a path of this machine, or an address of storage far away."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keepstep.config.address import Address


def place_of(text: str) -> "Path | Address":
    """As `keepstep.ops.place.place_of`; a command on a path does not wait for what addresses need.

    Raises:
        ConfigError: it is an address that does not work.
    """
    if "://" not in text:
        return Path(text)
    from keepstep.ops.place import place_of as parsed

    return parsed(text)


def folder_of(text: str, remedy: str) -> Path:
    """A path of this machine.

    Raises:
        ConfigError: it is an address of somewhere else.
    """
    place = place_of(text)
    if isinstance(place, Path):
        return place
    from keepstep.errors import ConfigError

    raise ConfigError(f"{place}: {remedy}")
