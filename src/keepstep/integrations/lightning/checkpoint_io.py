"""Lightning's CheckpointIO: plain `.ckpt` files that are committed by a rename and verified before they are read."""

import logging
import os
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from keepstep.errors import DamagedCheckpointError
from keepstep.integrations.lightning.cleaning import remove
from keepstep.integrations.lightning.facts import facts_of
from keepstep.integrations.lightning.packages import part, present
from keepstep.integrations.lightning.verdict import Judged, judge
from keepstep.integrations.lightning.write import write_file
from keepstep.storage.named_records import names_in

logger = logging.getLogger("keepstep")


class Verified:
    """What `VerifiedCheckpointIO` adds to Lightning's own. Paths that are not on a file system are left to that."""

    package = ""
    plain: Any = None

    def __init__(self) -> None:
        # AsyncCheckpointIO, when it is what calls this: a removal must wait for the saves that it was asked for before.
        self.writer: Any = None

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write one file, and its record; at each moment the name means the whole old one or the whole new one.

        Raises:
            TypeError: storage_options are given.
            SaveError: the disk refused. What was saved before is untouched.
        """
        place = local_path(path)
        if storage_options is not None or place is None:
            _warn_remote(path)
            self.plain().save_checkpoint(checkpoint, path, storage_options)
            return
        world_size = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        write_file(place, facts_of(checkpoint, world_size), lambda sink: torch.save(checkpoint, sink))  # type: ignore[arg-type]

    def load_checkpoint(
        self, path: Any, map_location: Any = lambda storage, _: storage, weights_only: Any = None
    ) -> Any:
        """Compare a file with its record, then read it. One without a record is read with a warning.

        Raises:
            FileNotFoundError: it is not there.
            DamagedCheckpointError: it is not what was written. Nothing of it was unpickled.
            CouldNotLookError: it cannot be read.
        """
        place = local_path(path)
        if place is None:
            _warn_remote(path)
        else:
            require_good(place)
        return self.plain().load_checkpoint(path, map_location=map_location, weights_only=weights_only)

    def remove_checkpoint(self, path: Any) -> None:
        """Delete a checkpoint, then its record. After an asynchronous save this waits its turn behind it."""
        place = local_path(path)
        if place is None:
            self.plain().remove_checkpoint(path)
        elif self.writer is not None and self.writer._executor is not None:
            self.writer._executor.submit(self._remove_after_saves, place)
        else:
            remove(place)

    def teardown(self) -> None:
        """Nothing to end."""

    def _remove_after_saves(self, place: Path) -> None:
        if self.writer._error is not None:
            logger.warning("%s is kept, since a save after it has failed", place)
            return
        try:
            remove(place)
        except OSError as error:
            logger.warning("%s could not be deleted: %s", place, error)

    def __reduce__(self) -> Any:
        return _rebuilt, (self.package, self.writer)


@cache
def checkpoint_io_class(package: str) -> type[Any]:
    """The class for one of Lightning's two names; it is a subclass of that one's `TorchCheckpointIO`.

    Raises:
        ImportError: it is not installed.
    """
    plain = part(package, "plugins.io").TorchCheckpointIO
    names = {"package": package, "plain": plain, "__doc__": Verified.__doc__, "__module__": __name__}
    return type("VerifiedCheckpointIO", (Verified, plain), names)


def default_class() -> type[Any]:
    """The class for the Lightning that is installed. Raises ImportError when none is."""
    return checkpoint_io_class(present())


def require_good(path: Path) -> None:
    """Let pass a checkpoint that is as it was written, one without a record with a warning, and one that is not there.

    Raises:
        DamagedCheckpointError: it is not what was written.
        CouldNotLookError: it cannot be read.
    """
    place = Path(os.path.realpath(path))
    verdict = judge(place)
    if verdict.judged is Judged.FOREIGN:
        logger.warning("%s has no record of keepstep's: it is loaded as it is, unverified", path)
    if verdict.judged is Judged.DAMAGED:
        others = [name for name in names_in(place.parent) if name != place.name and name.endswith(".ckpt")]
        raise DamagedCheckpointError(
            f"{path} is damaged: {verdict.problem}. Nothing of it was loaded; "
            + ('ckpt_path="last" goes on from the newest that is good' if others else "put a copy in its place")
        )


def local_path(path: Any) -> Path | None:
    """A path on a file system, None for any other address."""
    text = os.fspath(path)
    if text.startswith("file://"):
        return Path(text.removeprefix("file://"))
    # Absolute, so that nobody who changes folders finds another one.
    return None if "://" in text else Path(os.path.abspath(text))


def _warn_remote(path: Any) -> None:
    if local_path(path) is None:
        logger.warning("%s is not on a file system: Lightning's own reading and writing is used, unverified", path)


def _rebuilt(package: str, writer: Any) -> Any:
    made = checkpoint_io_class(package)()
    made.writer = writer
    return made
