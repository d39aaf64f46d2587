"""What every kind of store does. `tests/storage/stores/conformance.py` holds them all to it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from keepstep.storage.stores.meter import Meter


@dataclass(frozen=True)
class StoredObject:
    """What a listing tells of one object.

    Attributes:
        name: relative to the store's address.
        size: bytes.
        modified: seconds since the epoch, by the clock of the store.
        tag: what the store calls this content; empty where it says nothing.
    """

    name: str
    size: int
    modified: float
    tag: str = ""


@dataclass(frozen=True)
class Upload:
    """A local file that goes to a store under a name. `digest` (as in a manifest) is what its bytes must have."""

    name: str
    path: Path
    size: int
    digest: str


class ChangedFileError(ValueError):
    """A local file is not as its digest says: what would be uploaded is damaged."""


class Store(Protocol):
    """Bytes under names below an address.

    All methods raise OSError where the store cannot be asked or refuses (FileNotFoundError: there is no such object;
    PermissionError: it is not allowed). Texts of errors hold no credentials. Retries are made inside, within bounds.
    """

    @property
    def address(self) -> str:
        """For people, without secrets."""

    def list(self, prefix: str = "") -> list[StoredObject]:
        """All objects below a prefix (whole parts of the path), sorted by name. An empty list means: there are none."""

    def read(self, name: str, limit: int) -> bytes:
        """A whole object. Raises OSError (EFBIG) where it is longer than `limit` bytes."""

    def read_into(self, name: str, offset: int, target: memoryview) -> None:
        """Fill `target` from byte `offset` on. Raises EOFError where the object ends before."""

    def put(
        self, uploads: Sequence[Upload], last: Upload, meter: Meter, confirm: Callable[[], None] = lambda: None
    ) -> None:
        """Upload files, and check that what is stored has their digests; `last` becomes visible after all others have
        been checked, and after `confirm` has been called. What an upload that did not end has left whole is not sent
        again.

        Raises:
            ChangedFileError: a local file is not as its digest says. Nothing under `last` was made.
        """

    def write(self, name: str, data: bytes) -> None:
        """Store a small object; another of that name is replaced in one step."""

    def create(self, name: str, data: bytes) -> bool:
        """Store a small object where there is none of that name. Returns False where there is one."""

    def remove(self, prefix: str, first: str) -> None:
        """Delete all objects below a prefix, the one called `<prefix>/<first>` before all others."""
