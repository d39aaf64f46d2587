"""python -m tests.rig.cut_save train JOB: the save of one step stands still on each rank until a file is there"""

import os
import sys
import time
from pathlib import Path
from typing import Any

from keepstep.checkpoint import save as save_module
from keepstep.cli.worker import run

FOLDER, STEP = Path(os.environ["CUT_SAVE_FOLDER"]), os.environ["CUT_SAVE_STEP"]
write_shard = save_module.write_shard


def written_and_waiting(folder: Path, *arguments: Any) -> Any:
    """Write, say so, and wait."""
    written = write_shard(folder, *arguments)
    if folder.name.startswith(f".save-{STEP}."):
        (FOLDER / f"written-{os.environ['RANK']}").touch()
        deadline = time.monotonic() + 60
        while not (FOLDER / "go").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
    return written


if __name__ == "__main__":
    save_module.write_shard = written_and_waiting
    sys.argv[0] = "keepstep"
    run()
