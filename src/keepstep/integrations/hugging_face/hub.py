"""The Hub as a second place for a Trainer's checkpoints: what is committed there, and the way back from it."""

import logging
import shutil
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
from keepstep.storage.local import publish, remove_tree, sync_folder
from keepstep.storage.survey import survey

logger = logging.getLogger("keepstep")

LAST = "last-checkpoint"


def keeps_checkpoints(args: Any) -> bool:
    """Whether checkpoints of a trainer with these arguments are pushed to the Hub."""
    return bool(args.push_to_hub) and str(getattr(args.hub_strategy, "value", args.hub_strategy)) in (
        "checkpoint",
        "all_checkpoints",
    )


def fetch_newer(trainer: Any, folder: Path, world: World, claim: FolderClaim) -> None:
    """Fetch the checkpoint on the Hub, where that is newer than all in the folder. Collective.

    Raises:
        ResumeError: on all ranks: nothing is in the folder, and the Hub could not be asked, or what is there is not
            whole. That is never taken for an empty repository.
    """
    if not keeps_checkpoints(trainer.args):
        return
    with agreed(world, f"looking for checkpoints in {trainer.hub_model_id} on the Hub", ResumeError):
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
    name = layout.TRAINER.checkpoint_name(manifest.step)
    temporary = folder / layout.TRAINER.temporary_name(manifest.step, claim.attempt)
    remove_tree(temporary)
    try:
        logger.info("fetching step %d (%.1f MB) from %s", manifest.step, manifest.size / 1e6, repo.name)
        repo.download(place, temporary)
        content = temporary / place
        _verify(content, manifest, repo.name)
        claim.confirm()
        if (folder / name).exists():  # of a save that did not end, or damaged
            shutil.rmtree(folder / name)
        publish(content, folder / name)
    finally:
        remove_tree(temporary)


def _verify(content: Path, manifest: Manifest, repo: str) -> None:
    """Compare with the manifest, and sync."""
    absent = [name for name in manifest.files if not (content / name).is_file()]
    if absent:
        raise DamagedCheckpointError(f"the checkpoint in {repo} is not whole: {absent[0]} is missing")
    known = {*manifest.files, layout.MANIFEST}
    for path in content.rglob("*"):
        if path.is_file() and path.relative_to(content).as_posix() not in known:
            path.unlink()  # of an older step or world: a push that did not clear its place
    records = digest_and_sync(content, sorted(manifest.files))
    wrong = [name for name, record in records.items() if record != manifest.files[name]]
    if wrong:
        raise DamagedCheckpointError(f"the checkpoint in {repo} is damaged: {wrong[0]} is not as it was written")
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

    def newest(self) -> tuple[str, Manifest] | None:
        """The newest committed checkpoint: its folder in the repository, and its manifest. None where there is none.

        Raises:
            CouldNotLookError: the Hub could not be asked.
            CheckpointNotFoundError: what is there was not written by keepstep.
        """
        names = self._names()
        places = sorted({name.split("/")[0] for name in names if "/" in name})
        places = [one for one in places if one == LAST or layout.TRAINER.step_of(one) is not None]
        found = [(one, self._manifest(one)) for one in places if f"{one}/{layout.MANIFEST}" in names]
        if places and not found:
            raise CheckpointNotFoundError(
                f"{self.name} on the Hub holds {places[0]}, which keepstep did not write: download it, and resume from "
                "its path"
            )
        return max(found, key=lambda one: one[1].step, default=None)

    def download(self, place: str, target: Path) -> None:
        """Download one folder to `target/<place>`. Raises CouldNotLookError."""
        from huggingface_hub import snapshot_download

        try:
            snapshot_download(
                self.name,
                revision=self.revision,
                allow_patterns=[f"{place}/*", f"{place}/**"],
                local_dir=target,
                token=self.api.token,
                endpoint=self.api.endpoint,
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise CouldNotLookError(f"cannot download {place} from {self.name}: {error}") from error

    def _names(self) -> set[str]:
        from huggingface_hub.errors import RepositoryNotFoundError

        try:
            return set(self.api.list_repo_files(self.name, revision=self.revision))
        except RepositoryNotFoundError:
            return set()
        except (OSError, ValueError, RuntimeError) as error:
            raise CouldNotLookError(f"cannot look into {self.name} on the Hub: {error}") from error

    def _manifest(self, place: str) -> Manifest:
        try:
            path = self.api.hf_hub_download(self.name, f"{place}/{layout.MANIFEST}", revision=self.revision)
            return from_text(Path(path).read_text(), digest_of_bytes)
        except ManifestError as error:
            raise DamagedCheckpointError(f"{self.name} on the Hub, {place}: {error}") from error
        except (OSError, ValueError, RuntimeError) as error:
            raise CouldNotLookError(f"cannot read {place} in {self.name} on the Hub: {error}") from error
