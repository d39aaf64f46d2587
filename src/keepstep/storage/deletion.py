"""Takes a checkpoint away in the order that no crash can turn into a half checkpoint."""

from pathlib import Path

from keepstep.plan import layout
from keepstep.storage.local import remove_tree


def delete_checkpoint(folder: Path, step: int, attempt: int) -> None:
    """Rename a checkpoint to a name that nobody loads, then delete it. Raises OSError when either fails."""
    doomed = folder / layout.doomed_name(step, attempt)
    (folder / layout.checkpoint_name(step)).rename(doomed)
    remove_tree(doomed)
