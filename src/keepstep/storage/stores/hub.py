"""A repository of the Hugging Face Hub as a store: what belongs together is one commit there."""

import errno
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from keepstep.config.address import Address
from keepstep.plan import last_copy, layout
from keepstep.storage.digest import digest_of_bytes
from keepstep.storage.parallel import run_on
from keepstep.storage.stores.base import Store, StoredObject, Upload
from keepstep.storage.stores.hub_files import Prepared
from keepstep.storage.stores.hub_repo import HubRepository
from keepstep.storage.stores.meter import Meter

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoFile

# Files that are under way at once.
_FILES = 4


def open_hub(address: Address) -> Store:
    """Open a repository. Nothing is asked of it yet."""
    return HubStore(address)


class HubStore:
    """A folder of a model repository, or all of it. A missing one is made at the first write, and private.

    The newest checkpoint lies a second time in `last-checkpoint` beside it, where `transformers` looks; the
    bytes of large files are stored once. That copy is not listed, and stays when the checkpoint is removed.

    Args:
        address: `hf://user/repo[/folder]`.
    """

    def __init__(self, address: Address) -> None:
        self._address, self._folder = str(address), address.path
        self._repo = HubRepository(address.place)

    @property
    def address(self) -> str:
        return self._address

    def list(self, prefix: str = "") -> list[StoredObject]:
        """`modified` is told of manifests alone, else 0.0: the Hub has to search its history for each date.

        A repository that is missing (which looks the same as one that the token cannot see) is empty.
        """
        files = {name: one for name, one in self._below(prefix).items() if not last_copy.is_copy(name[len(prefix) :])}
        manifests = [one.path for name, one in files.items() if name.rpartition("/")[2] == layout.MANIFEST]
        dates = {
            one.path: one.last_commit.date.timestamp()
            for one in self._repo.infos(manifests, with_dates=True)
            if one.last_commit is not None
        }
        return [StoredObject(name, files[name].size, dates.get(files[name].path, 0.0)) for name in sorted(files)]

    def read(self, name: str, limit: int) -> bytes:
        found = self._repo.read(self._path(name), 0, limit + 1)
        if found.total > limit:
            raise OSError(errno.EFBIG, f"it has {found.total} bytes; {limit} is the most", self._of(name))
        return found.data

    def read_into(self, name: str, offset: int, target: memoryview) -> None:
        if not target:
            return
        found = self._repo.read(self._path(name), offset, len(target))
        if len(found.data) != len(target):
            raise EOFError(f"it ends at byte {found.total}")
        target[:] = memoryview(found.data)

    def put(
        self, uploads: Sequence[Upload], last: Upload, meter: Meter, confirm: Callable[[], None] = lambda: None
    ) -> None:
        from huggingface_hub import CommitOperationDelete

        prepared: dict[str, Prepared] = {}

        def prepare(upload: Upload) -> None:
            prepared[upload.name] = Prepared(upload, self._path(upload.name), meter)

        # The largest first: the others fill the gaps beside it. Nothing is sent before all have been read.
        ordered = sorted([*uploads, last], key=lambda one: -one.size)
        run_on(min(_FILES, len(ordered)), iter(ordered), prepare)
        self._repo.make()
        files = [prepared[one.name] for one in ordered]
        run_on(
            min(_FILES, len(files)), iter(files), lambda one: self._repo.upload(one.operation, lambda: one.file.moved)
        )

        checkpoint = last_copy.checkpoint_of(last.name)
        # Older ones may be put after newer ones: what was saved first must not become the last.
        is_last = checkpoint is not None and last_copy.is_newest(
            checkpoint, self._below(last_copy.parent_of(checkpoint))
        )
        copies = last_copy.copies(prepared, checkpoint) if checkpoint and is_last else {}

        def operations(parent: str | None) -> Sequence[Any]:
            present = self._below(last_copy.place_of(checkpoint), parent) if checkpoint and copies else {}
            return [
                *(CommitOperationDelete(self._path(name)) for name in sorted(present.keys() - set(copies.values()))),
                *(one.operation for one in files),
                *(prepared[name].twin(self._path(copy)) for name, copy in copies.items()),
            ]

        confirm()
        commit = self._repo.commit(f"Store {checkpoint or last.name}", operations)
        wrong = self._first_wrong(commit, prepared, copies)
        if wrong is not None:
            self._take_back([last.name, copies[last.name]] if copies else [last.name], wrong)

    def write(self, name: str, data: bytes) -> None:
        from huggingface_hub import CommitOperationAdd

        self._repo.make()
        self._repo.commit(f"Write {name}", lambda parent: [CommitOperationAdd(self._path(name), data)])

    def create(self, name: str, data: bytes) -> bool:
        from huggingface_hub import CommitOperationAdd

        present: dict[str, RepoFile] = {}
        tried: set[str | None] = set()

        def operations(parent: str | None) -> Sequence[Any]:
            present.update({one.path: one for one in self._repo.infos([self._path(name)], parent)})
            if present:
                return []
            tried.add(parent)
            return [CommitOperationAdd(self._path(name), data)]

        self._repo.make()
        self._repo.commit(f"Create {name}", operations)
        if not present:
            return True
        # A commit whose answer was lost is found when it is tried again: it is ours if it holds what we sent.
        is_as_large = present[self._path(name)].size == len(data)
        return bool(tried) and is_as_large and self.read(name, len(data)) == data

    def remove(self, prefix: str, first: str) -> None:
        from huggingface_hub import CommitOperationDelete

        def operations(parent: str | None) -> Sequence[Any]:
            return (
                [CommitOperationDelete(f"{self._path(prefix)}/", is_folder=True)] if self._below(prefix, parent) else []
            )

        if self._below(prefix):
            self._repo.commit(f"Remove {prefix}", operations)

    def _first_wrong(
        self, commit: str | None, prepared: Mapping[str, Prepared], copies: Mapping[str, str]
    ) -> str | None:
        """The first name under which not that is stored which was sent."""
        names = [self._path(name) for name in [*prepared, *copies.values()]]
        found = {one.path: one for one in self._repo.infos(names, commit)}
        for name, one in prepared.items():
            stored = found.get(self._path(name))
            if stored is None or not self._holds(stored, one, commit):
                return name
            copy = found.get(self._path(copies[name])) if name in copies else stored
            if copy is None or copy.blob_id != stored.blob_id:
                return copies[name]
        return None

    def _holds(self, stored: "RepoFile", one: Prepared, commit: str | None) -> bool:
        size = one.upload.size
        if stored.size != size:
            return False
        if stored.lfs is not None:
            return stored.lfs.sha256 == one.sha256
        return digest_of_bytes(self._repo.read(stored.path, 0, size + 1, commit).data) == one.upload.digest

    def _take_back(self, names: Sequence[str], wrong: str) -> None:
        """Nobody shall take for whole what is not."""
        from huggingface_hub import CommitOperationDelete

        text = f"what is stored of {wrong} is not what was sent"
        try:
            self._repo.commit(
                f"Take back {wrong}", lambda parent: [CommitOperationDelete(self._path(one)) for one in names]
            )
        except OSError as error:
            text += f", and that could not be taken back ({error.strerror}): delete it there"
        raise OSError(errno.EIO, text, self._of(wrong))

    def _below(self, prefix: str, revision: str | None = None) -> dict[str, "RepoFile"]:
        """All files below a prefix, by their names."""
        cut = len(self._folder) + 1 if self._folder else 0
        return {one.path[cut:]: one for one in self._repo.files(self._path(prefix), revision)}

    def _path(self, name: str) -> str:
        return "/".join(part for part in (self._folder, name) if part)

    def _of(self, name: str) -> str:
        return f"{self._address}/{name}" if name else self._address
