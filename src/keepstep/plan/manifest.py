"""The manifest: what belongs to a checkpoint. A folder without a valid one is not a checkpoint."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from keepstep.plan import layout

FORMAT_VERSION = 1


class ManifestError(ValueError):
    """The text is not a manifest that this version can trust."""


class ForeignManifestError(ManifestError):
    """The text is a manifest of something else."""


class NewerManifestError(ManifestError):
    """The manifest was written by a newer version."""


@dataclass(frozen=True)
class FileRecord:
    """Size in bytes and digest (hex) of one file."""

    size: int
    digest: str


@dataclass(frozen=True)
class Manifest:
    """The commit record of a checkpoint.

    Attributes:
        step: completed optimizer steps or global batches.
        attempt: the attempt of the run that wrote it; grows with each restart.
        world_size: number of ranks that wrote it.
        components: names of the parts of the job's state that it holds.
        files: every file of the checkpoint but the manifest itself.
    """

    step: int
    attempt: int
    world_size: int
    components: tuple[str, ...]
    files: Mapping[str, FileRecord]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(record.size for record in self.files.values())


def to_text(manifest: Manifest, digest: Callable[[bytes], str]) -> str:
    """The manifest as JSON. Its last field is the digest of all before it, so that any damage to it shows."""
    body = {
        "format": FORMAT_VERSION,
        "step": manifest.step,
        "attempt": manifest.attempt,
        "world_size": manifest.world_size,
        "components": list(manifest.components),
        "files": {name: {"size": r.size, "digest": r.digest} for name, r in sorted(manifest.files.items())},
    }
    return json.dumps({**body, "digest": digest(_canonical(body))}, indent=1)


def from_text(text: str, digest: Callable[[bytes], str]) -> Manifest:
    """Read a manifest and check it. Raises ManifestError with what is wrong."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"not valid JSON ({error})") from None
    if not isinstance(body, dict) or not {"format", "step", "files", "digest"} <= body.keys():
        raise ForeignManifestError("its manifest.json is not of keepstep")
    version = body["format"]
    if type(version) is int and version > FORMAT_VERSION:
        raise NewerManifestError(
            f"it was written by a newer keepstep (format {version}; this one reads {FORMAT_VERSION}); update keepstep"
        )
    if version != FORMAT_VERSION:
        raise ManifestError(f"format {version!r} is unknown")
    stated = body.pop("digest", None)
    if stated != digest(_canonical(body)):
        raise ManifestError("its content does not match its own digest")
    try:
        files = {name: FileRecord(_count(r["size"]), str(r["digest"])) for name, r in body["files"].items()}
        manifest = Manifest(
            step=_count(body["step"]),
            attempt=_count(body["attempt"]),
            world_size=_count(body["world_size"]),
            components=tuple(str(name) for name in body["components"]),
            files=files,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ManifestError(f"a field is missing or of the wrong type ({error!r})") from None
    unsafe = [name for name in files if not layout.is_safe_file_name(name)]
    if unsafe:
        raise ManifestError(f"file name {unsafe[0]!r} is not allowed")
    return manifest


def _canonical(body: Mapping[str, object]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is not a count")
    return value
