"""The manifest: what belongs to a checkpoint. A folder without a valid one is not a checkpoint."""

import json
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from keepstep.plan import layout

FORMAT_VERSION = 1
_MAX_COUNT = (1 << 63) - 1


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


def manifest_digest(manifest: Manifest, digest: Callable[[bytes], str]) -> str:
    """What stands for the whole checkpoint: the digest of its manifest, which has those of all files."""
    return str(json.loads(to_text(manifest, digest))["digest"])


def from_text(text: str, digest: Callable[[bytes], str]) -> Manifest:
    """Read a manifest and check it. Raises ManifestError with what is wrong."""
    try:
        body = json.loads(text, object_pairs_hook=_distinct, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"not valid JSON ({_short(error)})") from None
    if not isinstance(body, dict) or not {"format", "step", "files", "digest"} <= body.keys():
        raise ForeignManifestError("its manifest.json is not of keepstep")
    version = body["format"]
    if type(version) is int and version > FORMAT_VERSION:
        raise NewerManifestError(
            f"it was written by a newer keepstep (format {_short(version)}; this one reads {FORMAT_VERSION}); "
            "update keepstep"
        )
    if type(version) is not int or version != FORMAT_VERSION:
        raise ManifestError(f"format {_short(version)} is unknown")
    stated = body.pop("digest", None)
    try:
        found = digest(_canonical(body))
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"no digest can be made of it ({_short(error)})") from None
    if stated != found:
        raise ManifestError("its content does not match its own digest")
    try:
        manifest = Manifest(
            step=_count(body["step"]),
            attempt=_count(body["attempt"]),
            world_size=_count(body["world_size"]),
            components=tuple(map(_text, _list(body["components"]))),
            files={name: FileRecord(_count(r["size"]), _text(r["digest"])) for name, r in body["files"].items()},
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ManifestError(f"a field is missing or of the wrong type ({_short(error)})") from None
    unsafe = [name for name in manifest.files if not layout.is_safe_path(name) or name == layout.MANIFEST]
    if unsafe:
        raise ManifestError(f"file name {_short(unsafe[0])} is not allowed")
    # Blanks count too: a byte that has become another one is damage, whatever it means.
    if text != json.dumps({**body, "digest": stated}, indent=1):
        raise ManifestError("its content does not match its own digest")
    return manifest


def _canonical(body: Mapping[str, object]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a key stands in it twice")
    return values


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no number")


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_COUNT:
        raise TypeError(f"{_short(value)} is not a count")
    return value


def _list(value: object) -> list[object]:
    if type(value) is not list:
        raise TypeError(f"{_short(value)} is no list")
    return value


def _text(value: object) -> str:
    if type(value) is not str:
        raise TypeError(f"{_short(value)} is no text")
    return value


def _short(value: object) -> str:
    return reprlib.repr(str(value) if isinstance(value, Exception) else value)
