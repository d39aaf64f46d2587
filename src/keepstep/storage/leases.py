"""Readers that hold a checkpoint: as long as a lease lives, nobody deletes or moves it.

A lease is a file `.keepstep/leases/save-<step>.<name>` that its holder touches. It says for how many seconds it is
good after that, by the clock of the file system. A pin is a lease of nobody's that ends when it is taken back:
`.keepstep/leases/save-<step>.pin`. It holds a note, or nothing.
"""

import contextlib
import json
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from keepstep.errors import CheckpointNotFoundError
from keepstep.plan import layout
from keepstep.plan.layout import Naming
from keepstep.storage.json_file import read_json
from keepstep.storage.local import create_text, make_folders, replace_text, sync_folder

_FOLDER = f"{layout.KEEPSTEP_FOLDER}/leases"
_LONGEST = 24 * 3600.0
_PIN = ".pin"


class Lease:
    """A checkpoint is held from the making of this to `release`, or until a while after this process has died.

    Args:
        folder: the run's folder.
        step: which checkpoint; it need not be there.
        seconds: how long the lease outlives this process, should that die.
        renews_itself: by a thread; else `renew` must be called often enough.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path, step: int, seconds: float = 60.0, *, renews_itself: bool = True) -> None:
        place = folder / _FOLDER
        make_folders(place)
        self._path = place / f"{layout.checkpoint_name(step)}.{secrets.token_hex(8)}"
        self._text = json.dumps({"seconds": seconds})
        self._path.write_text(self._text)
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        if renews_itself:
            self._thread = threading.Thread(
                target=self._keep_alive, args=(seconds / 4,), name="keepstep-lease", daemon=True
            )
            self._thread.start()

    def renew(self) -> None:
        """Hold it for so many seconds more, from now on."""
        with contextlib.suppress(OSError):
            try:
                os.utime(self._path)
            except FileNotFoundError:
                # This process was suspended for longer than the lease was good, and somebody has taken it away.
                self._path.write_text(self._text)

    def release(self) -> None:
        """Hold it no more."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _keep_alive(self, beat: float) -> None:
        while not self._over.wait(beat):
            self.renew()


@contextmanager
def hold(folder: Path, step: int, seconds: float = 60.0, naming: Naming = layout.NATIVE) -> Iterator[Path]:
    """Hold a checkpoint for the duration of the body.

    Args:
        folder: the run's folder.
        step: which checkpoint.
        seconds: how long the lease outlives this process, should that die.
        naming: how checkpoints are called there.

    Yields:
        The checkpoint.

    Raises:
        CheckpointNotFoundError: it is gone.
    """
    lease = Lease(folder, step, seconds)
    try:
        # Looked for after the lease is there: whoever deletes looks for leases after it has renamed.
        checkpoint = folder / naming.checkpoint_name(step)
        if not checkpoint.is_dir():
            raise CheckpointNotFoundError(f"{checkpoint} is gone")
        yield checkpoint
    finally:
        lease.release()


def held_steps(folder: Path) -> frozenset[int]:
    """Steps of the checkpoints that somebody holds. Leases that are over are taken away."""
    place = folder / _FOLDER
    try:
        entries = list(os.scandir(place))
    except FileNotFoundError:
        return frozenset()
    if not entries:
        return frozenset()
    clock = place / f"clock.{secrets.token_hex(8)}"
    clock.touch()
    try:
        now = clock.stat().st_mtime
    finally:
        clock.unlink(missing_ok=True)
    held = set()
    for entry in entries:
        step = layout.kept_step(entry.name)
        if step is None:
            continue
        if entry.name.endswith(_PIN):
            held.add(step)
            continue
        with contextlib.suppress(FileNotFoundError):
            if now - entry.stat(follow_symlinks=False).st_mtime <= _seconds(Path(entry.path)):
                held.add(step)
            else:
                os.unlink(entry.path)
    return frozenset(held)


def pin(folder: Path, step: int, note: str | None = None) -> bool:
    """Keep a checkpoint until it is unpinned.

    Args:
        folder: the run's folder.
        step: which checkpoint.
        note: why; it takes the place of an earlier one. None: as it is.

    Returns:
        False when it was pinned already, with that note.

    Raises:
        OSError: the pin cannot be written.
    """
    place = folder / _FOLDER
    make_folders(place)
    path = place / f"{layout.checkpoint_name(step)}{_PIN}"
    text = json.dumps({"note": note}) if note else ""
    try:
        create_text(path, text)
    except FileExistsError:
        if note is None or note == _note(path):
            return False
        replace_text(path, text)  # one step: the checkpoint is pinned all the time
    return True


def unpin(folder: Path, step: int) -> bool:
    """Take a pin back. Returns False when there was none. Raises OSError."""
    try:
        (folder / _FOLDER / f"{layout.checkpoint_name(step)}{_PIN}").unlink()
    except FileNotFoundError:
        return False
    sync_folder(folder / _FOLDER)
    return True


def pinned_steps(folder: Path) -> frozenset[int]:
    """Steps of the checkpoints that are pinned. Raises OSError."""
    return frozenset(_pins(folder))


def pin_notes(folder: Path) -> dict[int, str]:
    """The notes of all pins, by step; empty for one without. Raises OSError."""
    return {step: _note(path) for step, path in _pins(folder).items()}


def _pins(folder: Path) -> dict[int, Path]:
    place = folder / _FOLDER
    try:
        names = os.listdir(place)
    except FileNotFoundError:
        return {}
    found = {layout.kept_step(name): place / name for name in names if name.endswith(_PIN)}
    return {step: path for step, path in found.items() if step is not None}


def _note(pin: Path) -> str:
    """What a pin says. Whatever it holds, it is a pin."""
    note = read_json(pin).get("note")
    return note if isinstance(note, str) else ""


def _seconds(lease: Path) -> float:
    try:
        seconds = float(json.loads(lease.read_bytes()[:1000])["seconds"])
    except (ValueError, TypeError, KeyError):
        return _LONGEST
    return min(seconds, _LONGEST)
