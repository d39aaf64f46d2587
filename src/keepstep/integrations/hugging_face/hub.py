"""The Hub as a second place for a Trainer's checkpoints: what is committed there, and the way back from it."""

import logging
import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from keepstep.checkpoint.claim import FolderClaim
from keepstep.dist.agree import agreed
from keepstep.dist.world import World
from keepstep.errors import CheckpointNotFoundError, CouldNotLookError, DamagedCheckpointError, ResumeError
from keepstep.plan import layout
from keepstep.plan.manifest import Manifest, ManifestError, from_text
from keepstep.storage.digest import digest_of_bytes
from keepstep.storage.folder_files import digest_and_sync
from keepstep.storage.line import abandoned_by, read_line
from keepstep.storage.local import make_folders, publish, remove_tree, sync_folder
from keepstep.storage.survey import survey

logger = logging.getLogger("keepstep")

LAST = "last-checkpoint"
_TRIES = 3


def strategy_of(args: Any) -> str:
    """The `hub_strategy` of a trainer with these arguments."""
    return str(getattr(args.hub_strategy, "value", args.hub_strategy))


def keeps_checkpoints(args: Any) -> bool:
    """Whether checkpoints of a trainer with these arguments are pushed to the Hub."""
    return bool(args.push_to_hub) and strategy_of(args) in ("checkpoint", "all_checkpoints")


def hub_errors() -> tuple[type[Exception], ...]:
    """What a request to the Hub may raise: bad answers, bad connections, and answers of something that is no Hub."""
    from huggingface_hub.errors import HfHubHTTPError

    # The HTTP library's own errors are no OSError, and which library that is differs between versions.
    return (OSError, ValueError, RuntimeError, LookupError, TypeError, AssertionError, *HfHubHTTPError.__bases__)


def told(error: BaseException) -> str:
    """An error of the Hub's client and what caused it, in one line."""
    texts: list[str] = []
    current: BaseException | None = error
    while current is not None and len(texts) < 2:
        lines = " ".join(str(current).split()) or "no further word"
        text = f"{type(current).__name__}: {lines}"[:500]
        if text not in texts:
            texts.append(text)
        current = current.__cause__
    return "; ".join(texts)


def fetch_newer(trainer: Any, folder: Path, world: World, claim: FolderClaim) -> None:
    """Fetch the checkpoint on the Hub, where that is newer than all in the folder. Collective.

    Raises:
        ResumeError: on all ranks: nothing is in the folder, and the Hub could not be asked, or what is there is not
            whole. That is never taken for an empty repository.
    """
    if not keeps_checkpoints(trainer.args):
        return
    with agreed(world, "looking for checkpoints on the Hub", ResumeError):
        if world.rank == 0:
            newest = max((one.found.step for one in survey(folder, layout.TRAINER).complete), default=0)
            try:
                _fetch(trainer, folder, newest, claim)
            except (CouldNotLookError, DamagedCheckpointError, CheckpointNotFoundError) as error:
                if not newest:
                    raise
                logger.warning("%s. Going on with what is in %s (step %d)", error, folder, newest)


def _fetch(trainer: Any, folder: Path, newest: int, claim: FolderClaim) -> None:
    repo = Repository(trainer)
    found = repo.newest()
    if found is None or found[1].step <= newest:
        return
    place, manifest = found
    if abandoned_by(read_line(folder))(manifest.step, manifest):
        logger.warning("step %d in %s is of a line of this run that was left: it is not fetched", manifest.step, repo)
        return
    temporary = folder / layout.TRAINER.temporary_name(manifest.step, claim.attempt)
    remove_tree(temporary)
    try:
        logger.info("fetching step %d (%.1f MB) from %s", manifest.step, manifest.size / 1e6, repo.name)
        repo.download(place, temporary)
        content = temporary / place
        _verify(content, manifest, f"{place} in {repo.name} on the Hub")
        claim.confirm()
        _move_aside(folder, manifest.step, claim)
        publish(content, folder / layout.TRAINER.checkpoint_name(manifest.step))
    finally:
        remove_tree(temporary)


def _move_aside(folder: Path, step: int, claim: FolderClaim) -> None:
    """Free a checkpoint's name: what has it is damaged or somebody else's, and is not deleted."""
    present = folder / layout.TRAINER.checkpoint_name(step)
    if not os.path.lexists(present):
        return
    aside = folder / layout.SET_ASIDE
    make_folders(aside)
    number = 0
    while os.path.lexists(target := aside / layout.moved_name(step, claim.attempt, number, layout.TRAINER)):
        number += 1
    present.rename(target)
    sync_folder(aside)
    logger.warning("%s was not whole, and gives way to the one on the Hub: it is now %s", present, target)


def _verify(content: Path, manifest: Manifest, where: str) -> None:
    """Compare with the manifest, and sync."""
    absent = [name for name in manifest.files if not (content / name).is_file()]
    if absent:
        raise DamagedCheckpointError(
            f"{where} is not whole: {absent[0]} is missing. Nothing of it was taken: take an earlier commit of the "
            "repository (hub_revision), or delete it there to begin at the first step"
        )
    known = {*manifest.files, layout.MANIFEST}
    for path in content.rglob("*"):
        if path.is_file() and path.relative_to(content).as_posix() not in known:
            path.unlink()  # of an older step or world: a push that did not clear its place
    records = digest_and_sync(content, sorted(manifest.files))
    wrong = [name for name, record in records.items() if record != manifest.files[name]]
    if wrong:
        raise DamagedCheckpointError(
            f"{where} is damaged: {wrong[0]} is not as it was written. Nothing of it was taken: take an earlier commit "
            "of the repository (hub_revision), or delete it there to begin at the first step"
        )
    digest_and_sync(content, [layout.MANIFEST])
    for path in [*(one for one in content.rglob("*") if one.is_dir()), content]:
        sync_folder(path)


class Repository:
    """A model repository on the Hub.

    Args:
        trainer: says which, and how to get in.
    """

    def __init__(self, trainer: Any) -> None:
        from huggingface_hub import HfApi

        args = trainer.args
        self.name = str(trainer.hub_model_id or args.hub_model_id or Path(args.output_dir).absolute().name)
        self.revision = getattr(args, "hub_revision", None)
        self.api = HfApi(token=args.hub_token)
        self._commit: str | None = None

    def __str__(self) -> str:
        return f"{self.name} on the Hub"

    def newest(self) -> tuple[str, Manifest] | None:
        """The newest committed checkpoint: its folder in the repository, and its manifest. None where there is none.

        What is read later is of the same commit of the repository.

        Raises:
            CouldNotLookError: the Hub could not be asked. A repository that cannot be seen is not an empty one.
            CheckpointNotFoundError: what is there was not written by keepstep.
            DamagedCheckpointError: a manifest that is there is not valid.
        """
        try:
            self._commit, names = self._look()
        except hub_errors() as error:
            raise CouldNotLookError(
                f"cannot look for checkpoints in {self}: {told(error)}. Check token, network and hub_revision and "
                "start again; with push_to_hub=False only the folder is looked into"
            ) from error
        places = sorted({name.split("/")[0] for name in names if "/" in name})
        places = [one for one in places if one == LAST or layout.TRAINER.step_of(one) is not None]
        found = [(one, self._manifest(one)) for one in places if f"{one}/{layout.MANIFEST}" in names]
        if places and not found:
            raise CheckpointNotFoundError(
                f"{self} holds {places[0]}, which keepstep did not write, and nothing else to resume from. "
                f"`hf download {self.name} --include '{places[0]}/*' --local-dir DIR` fetches it; then "
                f"resume_from_checkpoint='DIR/{places[0]}' takes it as it is"
            )
        return max(found, key=lambda one: one[1].step, default=None)

    def download(self, place: str, target: Path) -> None:
        """Download one folder to `target/<place>`. Raises CouldNotLookError."""
        from huggingface_hub import snapshot_download

        try:
            snapshot_download(
                self.name,
                revision=self._commit or self.revision,
                allow_patterns=[f"{place}/*"],
                local_dir=target,
                token=self.api.token,
                endpoint=self.api.endpoint,
            )
        except hub_errors() as error:
            raise CouldNotLookError(f"cannot fetch {place} from {self}: {told(error)}. Start again") from error

    def commit(
        self, message: str, added: dict[str, Path], clears: Callable[[str], bool], goes_on: Callable[[], bool]
    ) -> None:
        """Put files there and take others away, in one commit: whoever looks sees the state before it, or after.

        `HfApi.upload_folder` may split a folder over several commits, so it is not used.

        Args:
            message: of the commit.
            added: files by their path in the repository.
            clears: whether a file that is there, and is not added, is to go.
            goes_on: asked before each request that takes long or changes something; if not, nothing more is done.

        Raises:
            what `hub_errors` says.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        for number in range(_TRIES):
            parent, names = self._look()
            additions = [CommitOperationAdd(name, str(path)) for name, path in added.items()]
            for part in _parts(additions):
                if not goes_on():
                    return
                self.api.preupload_lfs_files(
                    self.name, part, revision=self.revision, num_threads=1, free_memory=False, gitignore_content=""
                )
            deletions = [CommitOperationDelete(name) for name in sorted(names - added.keys()) if clears(name)]
            if not goes_on():
                return
            try:
                self.api.create_commit(
                    self.name,
                    [*deletions, *additions],
                    commit_message=message,
                    revision=self.revision,
                    parent_commit=parent,
                    num_threads=1,
                )
            except hub_errors() as error:
                # Somebody else, or an upload that was given up, has changed the repository since.
                has_moved = getattr(getattr(error, "response", None), "status_code", None) == 412
                if not has_moved or number == _TRIES - 1:
                    raise
                continue
            return

    def _look(self) -> tuple[str | None, set[str]]:
        """The present commit (None before the first), and the names of all files in it."""
        commit = self.api.repo_info(self.name, revision=self.revision).sha
        return commit, set() if commit is None else set(self.api.list_repo_files(self.name, revision=commit))

    def _manifest(self, place: str) -> Manifest:
        name = f"{place}/{layout.MANIFEST}"
        try:
            path = self.api.hf_hub_download(self.name, name, revision=self._commit or self.revision)
            text = Path(path).read_text()
        except hub_errors() as error:
            raise CouldNotLookError(f"cannot read {name} in {self}: {told(error)}. Start again") from error
        try:
            return from_text(text, digest_of_bytes)
        except ManifestError as error:
            raise DamagedCheckpointError(f"{name} in {self}: {error}") from error


def _parts(additions: Sequence[Any]) -> list[list[Any]]:
    """What is uploaded by one call.

    Several files at once go through a pool of threads that the interpreter waits for at its exit, be it that the Hub
    never answers. A single file does not, and Xet has threads of its own.
    """
    from huggingface_hub import constants

    if find_spec("hf_xet") is not None and not getattr(constants, "HF_HUB_DISABLE_XET", False):
        return [list(additions)]
    return [[one] for one in additions]
