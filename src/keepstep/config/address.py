"""Addresses of storage: what a user writes for a mirror, taken apart."""

import re
from dataclasses import dataclass, replace

from keepstep.errors import ConfigError

# Object stores, the Hub, a mounted folder, and what can only be read.
OBJECT_STORES = ("s3", "gs", "az")
READ_ONLY = ("https", "http")
SCHEMES = (*OBJECT_STORES, "hf", "file", *READ_ONLY)

_FORM = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://(.*)", re.DOTALL)
_EXAMPLES = "s3://bucket/folder, gs://..., az://..., hf://user/repo or file:///mnt/drive/folder"


@dataclass(frozen=True)
class Address:
    """`<scheme>://<place>/<path>`.

    Attributes:
        scheme: one of `SCHEMES`.
        place: bucket, container, `user/repo` or host; empty of a folder.
        path: inside it, without a slash at either end; of a folder the whole path, with the slash that it begins with.
        query: what follows a question mark (of a presigned address). It is a secret and never printed.
    """

    scheme: str
    place: str
    path: str
    query: str = ""

    def __str__(self) -> str:
        if self.scheme == "file":
            return f"file://{self.path}"
        return f"{self.scheme}://{self.place}" + (f"/{self.path}" if self.path else "")

    @property
    def is_read_only(self) -> bool:
        return self.scheme in READ_ONLY

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> "Address":
        """The address one level up; at the top itself."""
        return replace(self, path=self.path.rpartition("/")[0])

    def joined(self, name: str) -> "Address":
        """The address of `name` (which may hold slashes) below this one."""
        if not name:
            return self
        return replace(self, path=f"{self.path.rstrip('/')}/{name}" if self.path else name)


def is_address(text: str) -> bool:
    """Whether a text is meant as an address, and not as a path of this machine."""
    return _FORM.fullmatch(text) is not None


def parse_address(text: str) -> Address:
    """Take an address apart.

    Raises:
        ConfigError: it is none, of a kind that is not known, or holds a name or password.
    """
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{text}: no address; write {_EXAMPLES}")
    scheme, rest = match[1].lower(), match[2]
    if scheme not in SCHEMES:
        raise ConfigError(f"{scheme}://...: addresses of this kind are not known; write {_EXAMPLES}")
    if "@" in rest.split("?")[0].split("/")[0]:
        raise ConfigError(
            f"{scheme}://...: an address must not hold a key or password; it would be written into records. Give "
            "credentials in the environment (docs/mirrors.md says where each kind looks)"
        )
    rest, _, query = rest.partition("?")
    if query and scheme not in READ_ONLY:
        raise ConfigError(f"{scheme}://{rest}: options after a question mark are not known for this kind of address")
    if any(part in (".", "..") for part in rest.split("/")):
        raise ConfigError(f"{scheme}://{rest}: must not hold . or .. as a part of the path")
    if scheme == "file":
        if not rest.startswith("/"):
            raise ConfigError(f"file://{rest}: write file:///<absolute path> with three slashes")
        return Address(scheme, "", "/" + _clean(rest))
    parts = _clean(rest).split("/")
    length = 2 if scheme == "hf" else 1
    place, path = parts[:length], parts[length:]
    if rest.startswith("/") or len(place) < length or not all(place):
        raise ConfigError(f"{text.partition('?')[0]}: no whole address; write {_EXAMPLES}")
    return Address(scheme, "/".join(place), "/".join(path), query)


def _clean(path: str) -> str:
    return "/".join(part for part in path.split("/") if part)
