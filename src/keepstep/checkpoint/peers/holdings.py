"""What all hosts hold, in the form in which it is decided upon."""

from collections.abc import Sequence

from keepstep.plan.assemble import Version
from keepstep.plan.manifest import Manifest
from keepstep.storage.holdings import Held


def join(hosts: Sequence[Held]) -> tuple[list[dict[Version, set[str]]], dict[Version, Manifest]]:
    """The files that each host holds, and the manifests of all saves."""
    manifests = {version: manifest for host in hosts for version, manifest in host.manifests.items()}
    return [{version: set(files) for version, files in host.files.items()} for host in hosts], manifests
