"""Hosts as network namespaces of this machine: an address and a name of their own, and a cable that can be pulled."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

# ip netns exec gives the network and mounts, unshare a host name of its own; both end as the command itself.
_NAMED = 'hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec "$@"'
INTERFACE = "eth0"


def missing() -> str:
    """Why there can be no hosts here; empty where there can."""
    absent = [name for name in ("ip", "unshare", "hostname") if shutil.which(name) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with hosts(1):
            return ""
    except subprocess.CalledProcessError as error:
        return f"no network namespaces: {error.stderr.strip()}"


class Hosts:
    """Hosts host-0, host-1, ... that reach each other; their addresses are 10.77.0.1, 10.77.0.2, ..."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._prefix = f"ks{os.getpid()}"
        self._switch = f"{self._prefix}-s"
        self._names = tempfile.NamedTemporaryFile("w", prefix="ks-hosts-")  # noqa: SIM115 - as long as the hosts

    def address(self, host: int) -> str:
        """Of a host."""
        return f"10.77.0.{host + 1}"

    def words(self, host: int, command: Sequence[str]) -> list[str]:
        """The command line that runs a command on a host."""
        named = ["unshare", "--uts", "sh", "-c", _NAMED, f"host-{host}", self._names.name]
        return ["ip", "netns", "exec", self._space(host), *named, *command]

    def cut(self, host: int) -> None:
        """Pull a host's cable: nothing reaches it, and nobody is told."""
        _ip("-n", self._switch, "link", "set", f"p{host}", "down")

    def mend(self, host: int) -> None:
        """Put it back."""
        _ip("-n", self._switch, "link", "set", f"p{host}", "up")

    def kill(self, host: int) -> None:
        """End everything on a host at once."""
        for pid in self._pids(host):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def ranks(self, host: int) -> list[int]:
        """Processes on a host that are ranks of a job."""
        found = []
        for pid in self._pids(host):
            with suppress(OSError):
                if b"\0RANK=" in Path(f"/proc/{pid}/environ").read_bytes():
                    found.append(pid)
        return found

    def make(self) -> None:
        self._names.write("127.0.0.1 localhost\n")
        self._names.writelines(f"{self.address(host)} host-{host}\n" for host in range(self.count))
        self._names.flush()
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "bridge", "up")
        for host in range(self.count):
            space = self._space(host)
            _ip("netns", "add", space)
            _ip("-n", space, "link", "add", INTERFACE, "type", "veth", "peer", f"p{host}", "netns", self._switch)
            _ip("-n", self._switch, "link", "set", f"p{host}", "master", "bridge", "up")
            _ip("-n", space, "address", "add", f"{self.address(host)}/24", "dev", INTERFACE)
            for name in ("lo", INTERFACE):
                _ip("-n", space, "link", "set", name, "up")

    def remove(self) -> None:
        for host in range(self.count):
            self.kill(host)
        for space in [*(self._space(host) for host in range(self.count)), self._switch]:
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "delete", space)
        self._names.close()

    def _space(self, host: int) -> str:
        return f"{self._prefix}-{host}"

    def _pids(self, host: int) -> list[int]:
        try:
            return [int(pid) for pid in _ip("netns", "pids", self._space(host)).split()]
        except subprocess.CalledProcessError:
            return []


@contextmanager
def hosts(count: int) -> Iterator[Hosts]:
    """Make hosts; nothing of them is left afterwards."""
    made = Hosts(count)
    try:
        made.make()
        yield made
    finally:
        made.remove()


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], capture_output=True, text=True, timeout=20, check=True).stdout
