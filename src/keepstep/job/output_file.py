"""The one file that a task makes of all that it collected, and the record that says of which checkpoint it is."""

import json
from collections.abc import Mapping
from pathlib import Path

from keepstep.storage.local import make_folders, replace_text

Identity = Mapping[str, str | int]


def write_output(target: Path, text: str, identity: Identity) -> None:
    """Write the file and its record."""
    make_folders(target.parent)
    replace_text(target, text)
    # Written second: an output without its record is made again.
    replace_text(_record_of(target), json.dumps(identity) + "\n")


def is_output_of(target: Path, identity: Identity) -> bool:
    """Whether the file is there and was made of this checkpoint."""
    try:
        return target.is_file() and bool(json.loads(_record_of(target).read_text()) == identity)
    except (FileNotFoundError, ValueError):
        return False


def _record_of(output: Path) -> Path:
    return output.with_name(f".{output.name}.keepstep.json")
