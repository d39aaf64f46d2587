"""Takes a checkpoint away in the order that no crash can turn into a half checkpoint."""

from pathlib import Path

from keepstep.plan import layout
from keepstep.plan.layout import Naming
from keepstep.storage.candidates import digest_of
from keepstep.storage.leases import held_steps
from keepstep.storage.local import remove_tree
from keepstep.storage.survey import inspect


def delete_checkpoint(folder: Path, step: int, attempt: int, naming: Naming = layout.NATIVE) -> bool:
    """Rename a checkpoint to a name that nobody loads, then delete it.

    Returns:
        False when a reader holds it, or it is pinned: it is there as before.

    Raises:
        FileNotFoundError: it is gone already.
        OSError: it cannot be renamed or deleted.
    """
    name, doomed = folder / naming.checkpoint_name(step), folder / naming.doomed_name(step, attempt)
    if doomed.exists():  # of a deletion that did not end
        remove_tree(doomed)
    name.rename(doomed)
    # Asked after the rename: a reader that comes from now on finds nothing to hold.
    if step in held_steps(folder, lambda _: _digest_of(doomed, step)):
        doomed.rename(name)
        return False
    remove_tree(doomed)
    return True


def _digest_of(path: Path, step: int) -> str:
    """The digest of a checkpoint's manifest; empty where it cannot be told: then all pins of the step count."""
    try:
        return digest_of(inspect(path, step))
    except OSError:
        return ""
