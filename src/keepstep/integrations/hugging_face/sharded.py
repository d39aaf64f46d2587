"""The folders that accelerate writes for FSDP2 (`pytorch_model_fsdp_0`, `optimizer_0`), by keepstep's writer.

They are plain DCP folders before and after: accelerate calls `torch.distributed.checkpoint.save`, and only that is
another one while a Trainer saves.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from keepstep.checkpoint.dcp_folder import DcpFolder, is_plain
from keepstep.dist.world import World

_module: Any = torch.distributed.checkpoint


class ShardedFolders:
    """One writer for each folder of a checkpoint.

    Args:
        world: the ranks.
        buffered: let what was copied be written later.
    """

    def __init__(self, world: World, *, buffered: bool) -> None:
        self._world, self._buffered = world, buffered
        self._folders: dict[str, DcpFolder] = {}

    @contextmanager
    def saving(self, later: Callable[[Callable[[], None]], None]) -> Iterator[None]:
        """While the body runs, what is saved through DCP goes through keepstep's writer. Collective.

        Args:
            later: takes what is to be written after the body.
        """
        save = _module.save

        def save_here(state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
            writer = kwargs.get("storage_writer")
            place = getattr(writer, "path", None)
            is_known = place is not None and type(writer) is FileSystemWriter and is_plain(state_dict)
            if not all(self._world.gather(is_known)):
                return save(state_dict, *args, **kwargs)
            folder = Path(str(place))
            held = self._folders.setdefault(folder.name, DcpFolder(self._world, buffered=self._buffered))
            write = held.take(folder, state_dict)
            if write is not None:
                later(write)
            return None

        _module.save = save_here
        try:
            yield
        finally:
            _module.save = save
