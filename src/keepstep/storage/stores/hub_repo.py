"""A model repository on the Hub: what is in it, and commits."""

import random
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from keepstep.storage.stores.hub_calls import FIRST_PAUSE, MovedOnError, NoRepositoryError, ask, token
from keepstep.storage.stores.hub_reads import Range, read_range

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

# Paths that are asked for at once, and with their dates.
_PATHS = 500
_DATED = 50
_TRIES = 8


class HubRepository:
    """All methods raise what `hub_calls.ask` does.

    Args:
        name: `user/repo`.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def head(self) -> str | None:
        """The last commit; None in a repository without any."""
        return ask(f"look into {self}", lambda: self._api().repo_info(self._name).sha)

    def make(self) -> None:
        """Make it, for its owner alone, where it is missing. One that is there is left as it is."""
        try:
            self.head()
        except NoRepositoryError:
            ask(f"make the repository {self}", lambda: self._api().create_repo(self._name, private=True, exist_ok=True))

    def files(self, folder: str, revision: str | None = None) -> list["RepoFile"]:
        """All files below a folder: none where that, or the repository, is missing."""
        from huggingface_hub.hf_api import RepoFile

        def look() -> list[Any]:
            api, main = self._api(), revision or "main"
            return list(api.list_repo_tree(self._name, folder or None, recursive=True, revision=main))

        try:
            found = ask(f"list {self._of(folder)}", look)
        except FileNotFoundError:
            return []
        return [one for one in found if isinstance(one, RepoFile)]

    def infos(self, paths: Sequence[str], revision: str | None = None, *, with_dates: bool = False) -> list["RepoFile"]:
        """What the Hub tells of those of these files that are there."""
        from huggingface_hub.hf_api import RepoFile

        found: list[Any] = []
        size = _DATED if with_dates else _PATHS
        for some in (list(paths[begin : begin + size]) for begin in range(0, len(paths), size)):

            def look(some: list[str] = some) -> list[Any]:
                main = revision or "main"
                return list(self._api().get_paths_info(self._name, some, expand=with_dates, revision=main))

            found += ask(f"look into {self}", look)
        return [one for one in found if isinstance(one, RepoFile)]

    def read(self, path: str, begin: int, count: int, revision: str | None = None) -> Range:
        """Read a range of a file."""
        return ask(
            f"read {self._of(path)}",
            lambda: read_range(self._name, path, revision or "main", begin, count),
            has_time_limit=True,
        )

    def upload(self, operation: Any, moved: Callable[[], float]) -> None:
        """Send a file, if it is a large one; what is small goes with the commit."""
        # One file by call: several go through a pool of threads that the interpreter waits for at its exit.
        path = operation.path_in_repo
        ask(f"upload {self._of(path)}", lambda: self._prepare([operation]), moved)

    def commit(self, message: str, operations: Callable[[str | None], Sequence[Any]]) -> str | None:
        """Commit what `operations` says of the last commit; it is asked again where that is not the last any more.

        Returns:
            The commit; the last one where there is nothing to do.
        """
        from huggingface_hub import CommitOperationAdd

        number = 0
        while True:
            parent = self.head()
            changes = list(operations(parent))
            if not changes:
                return parent

            def send(parent: str | None = parent, changes: list[Any] = changes) -> str:
                self._prepare([one for one in changes if isinstance(one, CommitOperationAdd)])
                info = self._api().create_commit(
                    self._name, changes, commit_message=message, parent_commit=parent, num_threads=1
                )
                return str(info.oid)

            try:
                return ask(f"commit to {self}", send)
            except MovedOnError:
                number += 1
                if number == _TRIES:
                    raise
            time.sleep(FIRST_PAUSE * number * random.uniform(0.5, 1.0))

    def _prepare(self, additions: list[Any]) -> None:
        for one in additions:
            if hasattr(one.path_or_fileobj, "seek"):
                one.path_or_fileobj.seek(0)  # a try that failed has left it anywhere
        # No .gitignore that is there leaves a file out.
        self._api().preupload_lfs_files(self._name, additions, num_threads=1, free_memory=False, gitignore_content="")

    def _api(self) -> "HfApi":
        from huggingface_hub import HfApi

        return HfApi(token=token())

    def _of(self, path: str) -> str:
        return f"{self}/{path}" if path else str(self)

    def __str__(self) -> str:
        return f"hf://{self._name}"
