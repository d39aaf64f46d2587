"""Machines with a folder of their own each, as groups of forked ranks, for the tiny job."""

import os
import shutil
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from keepstep.checkpoint.peers.hosts import HOST_VARIABLE
from keepstep.storage.survey import survey
from tests.rig import forks, tiny

# Of as many samples that any number of ranks up to four shares them evenly.
BATCH = 12


@dataclass(frozen=True)
class Machines:
    """`sizes`: how many ranks each has. Their names are letters, from `first` on."""

    folder: Path
    sizes: tuple[int, ...]
    names: str = "abcdefgh"

    def name(self, rank: int) -> str:
        return "".join(name * size for name, size in zip(self.names, self.sizes, strict=False))[rank]

    def run_folder(self, name: str) -> Path:
        return self.folder / name / "tiny"

    def steps(self, name: str) -> list[int]:
        """What is committed there, in parts or whole."""
        return [c.found.step for c in survey(self.run_folder(name)).checkpoints if c.manifest is not None]

    def wipe(self, *names: str) -> None:
        for name in names:
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def train(self, job: tiny.Tiny) -> dict[str, Any]:
        """One rank's part."""
        name = self.name(dist.get_rank() if dist.is_initialized() else 0)
        os.environ[HOST_VARIABLE] = name
        self._pids(name).mkdir(parents=True, exist_ok=True)
        (self._pids(name) / str(os.getpid())).touch()
        return tiny.train(replace(job, batch=BATCH, save_dir=str(self.folder / name), peer_copies=1))

    def _pids(self, name: str) -> Path:
        return self.folder / "pids" / name

    def die(self, name: str) -> None:
        """End all ranks of a machine, called by one of them: itself last."""
        for pid in sorted((int(file.name) for file in self._pids(name).iterdir()), key=lambda pid: pid == os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def start(self, job: tiny.Tiny) -> list[forks.Rank]:
        shutil.rmtree(self.folder / "pids", ignore_errors=True)
        return forks.start(lambda: self.train(job), sum(self.sizes))

    def run(self, job: tiny.Tiny, seconds: float = 60) -> list[forks.Ended]:
        ranks = self.start(job)
        for rank in ranks:
            rank.go()
        return forks.wait_all(ranks, seconds)

    def values(self, job: tiny.Tiny) -> list[dict[str, Any]]:
        return forks.values(lambda: self.train(job), sum(self.sizes))


def without_start(values: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Final states, wherever they began."""
    return [{key: value for key, value in one.items() if key != "start"} for one in values]
