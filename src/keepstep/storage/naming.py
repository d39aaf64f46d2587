"""How the checkpoints in a run's folder are called."""

import os
from pathlib import Path

from keepstep.plan import layout
from keepstep.plan.layout import Naming


def naming_in(folder: Path) -> Naming:
    """The Trainer's naming where a folder has checkpoints of that name and none of keepstep's own; else keepstep's.

    A folder that cannot be listed has keepstep's: whoever looks into it next says why.
    """
    try:
        names = [entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return layout.NATIVE
    found = {layout.naming_of(name) for name in names}
    return layout.TRAINER if layout.TRAINER in found and layout.NATIVE not in found else layout.NATIVE
