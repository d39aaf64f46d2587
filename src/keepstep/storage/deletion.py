"""Takes a checkpoint away in the order that no crash can turn into a half checkpoint."""

from pathlib import Path

from keepstep.plan import layout
from keepstep.plan.layout import Naming
from keepstep.storage.leases import held_steps
from keepstep.storage.local import remove_tree


def delete_checkpoint(folder: Path, step: int, attempt: int, naming: Naming = layout.NATIVE) -> bool:
    """Rename a checkpoint to a name that nobody loads, then delete it.

    Returns:
        False when a reader holds it: it is there as before.

    Raises:
        OSError: it cannot be renamed or deleted.
    """
    name, doomed = folder / naming.checkpoint_name(step), folder / naming.doomed_name(step, attempt)
    if doomed.exists():  # of a deletion that did not end
        remove_tree(doomed)
    name.rename(doomed)
    # Asked after the rename: a reader that comes from now on finds nothing to hold.
    if step in held_steps(folder):
        doomed.rename(name)
        return False
    remove_tree(doomed)
    return True
