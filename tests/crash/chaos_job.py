"""The tiny job as a program for ckpt-chaos: it resumes by itself, says from where, and writes its final state."""

import json
import os
import secrets
import sys
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from keepstep.dist.world import GroupWorld, SingleWorld
from tests.rig import forks, tiny


def main(out: Path) -> None:
    torch.set_num_threads(1)
    _name_by_count(out)
    with ExitStack() as stack:
        if "RANK" in os.environ:
            dist.init_process_group("gloo", timeout=timedelta(seconds=20))
            stack.callback(_leave)
            forks.world = GroupWorld(timedelta(seconds=20))
        result = tiny.train(tiny.Tiny(str(out / "checkpoints"), total=6, period=2, keep=None))
        if forks.world.rank == 0:
            print(f"resumed from step {result.pop('start')}", flush=True)
            with (out / "final.json").open("w") as file:
                json.dump(result, file, sort_keys=True)
        forks.world.gather(None)


def _name_by_count(out: Path) -> None:
    """The tool knows a file event by the file's name, so a name that is drawn at random looks like another event."""

    def token(size: int = 32) -> str:
        return f"{len(list(out.rglob('lock.new-*'))):0{2 * size}x}"

    secrets.token_hex = token  # type: ignore[assignment]


def _leave() -> None:
    # A group that lives until the interpreter ends may abort it: its threads are still there.
    forks.world = SingleWorld()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
