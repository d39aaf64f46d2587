"""Other systems that save the same state, as far as they are installed (requirements-bench.txt)."""

import importlib.util
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from benchmarks.measure import Asynchronous, Row, Training, asynchronous, timed

State = dict[str, torch.Tensor]


def is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def is_over(future: Any) -> Callable[[], bool]:
    """Of a future of any library; an error is raised."""

    def over() -> bool:
        if not future.done():
            return False
        if isinstance(future, Future):
            future.result()
        return True

    return over


def dcp_async(state: State, folder: Path, training: Training, runs: int) -> list[Asynchronous]:
    """torch.distributed.checkpoint.async_save; needs a process group."""
    return _saves(folder, training, runs, lambda path: dcp.async_save({"m": state}, checkpoint_id=path))


def torch_checkpointing_async(state: State, folder: Path, training: Training, runs: int) -> list[Asynchronous]:
    """torch_checkpointing, with its process that writes."""
    from torch_checkpointing import CheckpointManager
    from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

    config = CheckpointManager.Config.with_async_save()
    # Its direct I/O fails on ext4.
    config.storage_config = LocalFileSystemStorageConfig(use_direct_io=False)
    manager = CheckpointManager(config)
    saves = _saves(folder, training, runs, lambda path: manager.save(str(path), {"m": state}))
    manager.close()
    return saves


def torchsnapshot_rows(state: State, target: State, folder: Path, gib: float, runs: int) -> list[Row]:
    """torchsnapshot: take and restore."""
    from torchsnapshot import Snapshot, StateDict

    path = str(folder / "snapshot")

    def clean() -> None:
        shutil.rmtree(path, ignore_errors=True)

    take = timed(
        "torchsnapshot take",
        lambda: Snapshot.take(path, {"m": StateDict(**state)}),
        gib=gib,
        before=clean,
        runs=runs,
    )
    restore = timed(
        "torchsnapshot restore", lambda: Snapshot(path).restore({"m": StateDict(**target)}), gib=gib, runs=runs
    )
    clean()
    return [take, restore]


def _saves(folder: Path, training: Training, runs: int, save: Callable[[Path], Any]) -> list[Asynchronous]:
    saves = []
    for number in range(runs):
        path = folder / f"save-{number}"
        saves.append(asynchronous(training, lambda path=path: is_over(save(path))))
        shutil.rmtree(path)
    return saves
