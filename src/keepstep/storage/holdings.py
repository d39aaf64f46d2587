"""What a host's own folder holds of each save: some of its files, when the others lie on other hosts."""

import os
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from keepstep.errors import CouldNotLookError
from keepstep.plan import layout
from keepstep.plan.assemble import Version
from keepstep.plan.manifest import Manifest, to_text
from keepstep.plan.resume import Condition
from keepstep.storage.digest import digest_of_bytes
from keepstep.storage.line import abandoned_by, read_line
from keepstep.storage.survey import survey


@dataclass(frozen=True)
class Held:
    """What one host holds.

    Attributes:
        files: of each save, those that are there with their size.
        manifests: of each save.
        damaged: steps whose manifest cannot be trusted, with what is wrong.
        too_new: steps of a newer version of keepstep, with what it says.
    """

    files: Mapping[Version, Collection[str]] = field(default_factory=dict)
    manifests: Mapping[Version, Manifest] = field(default_factory=dict)
    damaged: Mapping[int, str] = field(default_factory=dict)
    too_new: Mapping[int, str] = field(default_factory=dict)


def version_of(manifest: Manifest) -> Version:
    """Which save a manifest is of."""
    text = to_text(manifest, digest_of_bytes)
    return Version(manifest.step, manifest.attempt, digest_of_bytes(text.encode()))


def held_in(folder: Path) -> Held:
    """Look into a host's folder, by names and sizes. What was abandoned is left out.

    Raises:
        CouldNotLookError: it cannot be read. That is never taken for an empty folder.
    """
    files: dict[Version, Collection[str]] = {}
    manifests: dict[Version, Manifest] = {}
    damaged: dict[int, str] = {}
    too_new: dict[int, str] = {}
    is_abandoned = abandoned_by(read_line(folder))
    for one in survey(folder).checkpoints:
        manifest, found = one.manifest, one.found
        if found.condition is Condition.TOO_NEW:
            too_new[found.step] = found.problem
        elif manifest is not None and manifest.step == found.step:
            if not is_abandoned(found.step, manifest):
                version = version_of(manifest)
                files[version], manifests[version] = _present(one.path, manifest), manifest
        elif found.condition is Condition.DAMAGED:
            damaged[found.step] = found.problem
    return Held(files, manifests, damaged, too_new)


def _present(path: Path, manifest: Manifest) -> frozenset[str]:
    found = set()
    for name, record in manifest.files.items():
        if not layout.is_safe_file_name(name):
            continue
        try:
            status = os.lstat(path / name)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise CouldNotLookError(f"cannot look at {path / name}: {error}") from error
        if stat.S_ISREG(status.st_mode) and status.st_size == record.size:
            found.add(name)
    return frozenset(found)
