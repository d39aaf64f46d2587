"""Readers that hold a checkpoint: as long as a lease lives, nobody deletes or moves it.

A lease is a file `.keepstep/leases/save-<step>.<name>` that its holder touches. It says for how many seconds it is
good after that, by the clock of the file system. A pin is a lease of nobody's that ends when it is taken back:
`.keepstep/leases/save-<step>.pin`. It holds a note and the digest of the checkpoint's manifest, or nothing: then it
pins whatever has the step.
"""

import contextlib
import json
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from keepstep.errors import CheckpointNotFoundError
from keepstep.plan import layout
from keepstep.plan.layout import Naming
from keepstep.storage.json_file import read_json
from keepstep.storage.local import create_text, make_folders, replace_text, sync_folder

_FOLDER = f"{layout.KEEPSTEP_FOLDER}/leases"
_LONGEST = 24 * 3600.0
_PIN = ".pin"

DigestAt = Callable[[int], str]


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


@dataclass(frozen=True)
class Pin:
    """What a pin says.

    Attributes:
        note: why.
        digest: of the manifest of the checkpoint that is meant; empty: whatever has the step.
    """

    note: str = ""
    digest: str = ""

    def is_of(self, digest: str) -> bool:
        """Whether it is of the checkpoint with this digest. One that is not known (empty) may be it."""
        return not self.digest or not digest or self.digest == digest


def _unknown(step: int) -> str:
    return ""


def held_steps(folder: Path, digest_at: DigestAt = _unknown) -> frozenset[int]:
    """Steps of the checkpoints that somebody holds. Leases that are over are taken away.

    Args:
        folder: the run's folder.
        digest_at: the digest of the manifest of the checkpoint that has a step; empty where it is not known. A pin of
            another one does not count. Asked only of steps that have pins.
    """
    return leased_steps(folder) | pinned_steps(folder, digest_at)


def leased_steps(folder: Path) -> frozenset[int]:
    """Steps of the checkpoints that readers hold. Leases that are over are taken away."""
    place = folder / _FOLDER
    try:
        entries = [entry for entry in os.scandir(place) if not entry.name.endswith(_PIN)]
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
        with contextlib.suppress(FileNotFoundError):
            if now - entry.stat(follow_symlinks=False).st_mtime <= _seconds(Path(entry.path)):
                held.add(step)
            else:
                os.unlink(entry.path)
    return frozenset(held)


def pin(folder: Path, step: int, note: str | None = None, digest: str = "") -> bool:
    """Keep a checkpoint until it is unpinned.

    Args:
        folder: the run's folder.
        step: which checkpoint.
        note: why; it takes the place of an earlier one. None: as it is.
        digest: of its manifest; a pin of another one gives way. Empty: whatever has the step is meant.

    Returns:
        False when it was pinned already, with that note.

    Raises:
        OSError: the pin cannot be written.
    """
    place = folder / _FOLDER
    make_folders(place)
    path = place / f"{layout.checkpoint_name(step)}{_PIN}"
    wanted = Pin(note or "", digest)
    try:
        create_text(path, _pin_text(wanted))
    except FileExistsError:
        before = _read_pin(path)
        is_same = before.is_of(digest)
        if is_same and note is None:
            wanted = replace(wanted, note=before.note)
        if wanted != before:
            replace_text(path, _pin_text(wanted))  # one step: the checkpoint is pinned all the time
        return not is_same or wanted.note != before.note
    return True


def pin_anew(folder: Path, step: int, digest: str) -> None:
    """Let the pin of a checkpoint, if it has one, be of the manifest that it has now. Raises OSError."""
    before = pins(folder).get(step)
    if before is not None and not before.is_of(digest):
        replace_text(folder / _FOLDER / f"{layout.checkpoint_name(step)}{_PIN}", _pin_text(Pin(before.note, digest)))


def unpin(folder: Path, step: int) -> bool:
    """Take a pin back. Returns False when there was none. Raises OSError."""
    try:
        (folder / _FOLDER / f"{layout.checkpoint_name(step)}{_PIN}").unlink()
    except FileNotFoundError:
        return False
    sync_folder(folder / _FOLDER)
    return True


def pins(folder: Path) -> dict[int, Pin]:
    """All pins, by step, also those of checkpoints that are there no more. Raises OSError."""
    place = folder / _FOLDER
    try:
        names = os.listdir(place)
    except FileNotFoundError:
        return {}
    found = {layout.kept_step(name): place / name for name in names if name.endswith(_PIN)}
    return {step: _read_pin(path) for step, path in found.items() if step is not None}


def pinned_steps(folder: Path, digest_at: DigestAt = _unknown) -> frozenset[int]:
    """Steps of the checkpoints that are pinned. `digest_at` as of `held_steps`. Raises OSError."""
    return frozenset(pin_notes(folder, digest_at))


def pin_notes(folder: Path, digest_at: DigestAt = _unknown) -> dict[int, str]:
    """The notes of all pins that count, by step; empty for one without. `digest_at` as of `held_steps`. Raises
    OSError."""
    found = pins(folder).items()
    return {step: one.note for step, one in found if not one.digest or one.is_of(digest_at(step))}


def _pin_text(pin: Pin) -> str:
    said = {name: value for name, value in vars(pin).items() if value}
    return json.dumps(said) if said else ""


def _read_pin(path: Path) -> Pin:
    """What a pin says. Whatever it holds, it is a pin."""
    found = read_json(path)
    note, digest = found.get("note"), found.get("digest")
    return Pin(note if isinstance(note, str) else "", digest if isinstance(digest, str) else "")


def _seconds(lease: Path) -> float:
    try:
        seconds = float(json.loads(lease.read_bytes()[:1000])["seconds"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return _LONGEST
    return min(seconds, _LONGEST)
