"""Which mount a path lies on."""

from pathlib import Path

import pytest

from keepstep.storage import mount
from keepstep.storage.mount import Mount, choose_mount, mount_of, mounts_from_text, volatile

TABLE = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 master:2 - overlay overlay rw,lowerdir=/a:/b
31 27 0:31 / /mnt/my\040drive rw - fuse.rclone remote:bucket\134x rw
32 27 8:1 /exports/data /data rw,relatime - ext4 /dev/sda1 rw
33 32 0:33 / /data/nfs rw - nfs4 server:/export rw
34 27 0:34 / /twice rw - autofs systemd-1 rw
35 34 0:35 / /twice rw - nfs4 server:/twice rw
no line at all
"""


@pytest.mark.parametrize(
    ("path", "kind", "source", "root"),
    [
        ("/", "overlay", "overlay", "/"),
        ("/home/run", "overlay", "overlay", "/"),
        ("/mnt/my drive/run", "fuse.rclone", "remote:bucket\\x", "/"),
        ("/mnt/my drives", "overlay", "overlay", "/"),
        ("/data/run", "ext4", "/dev/sda1", "/exports/data"),
        ("/data/nfs", "nfs4", "server:/export", "/"),
        ("/twice/run", "nfs4", "server:/twice", "/"),
    ],
)
def test_the_deepest_mount_on_top(path: str, kind: str, source: str, root: str) -> None:
    found = choose_mount(mounts_from_text(TABLE), path)
    assert found is not None
    assert (found.kind, found.source, found.root) == (kind, source, root)


def test_the_kernel_knows_better_where_a_mount_is_hidden() -> None:
    # Mounted over /data after /data/nfs was: that one is there, and not seen.
    mounts = mounts_from_text(TABLE + "36 32 0:36 / /data rw - tmpfs none rw\n")
    assert choose_mount(mounts, "/data/nfs/run", 36) == Mount(36, "/data", "/", "tmpfs", "none")
    assert choose_mount(mounts, "/data/nfs/run", 99) == Mount(33, "/data/nfs", "/", "nfs4", "server:/export")


def test_nothing_is_known_without_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mount, "_TABLE", tmp_path / "none")
    assert mount_of(tmp_path) is None
    assert volatile(tmp_path) == ""


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no /dev/shm")
def test_a_folder_of_this_machine(tmp_path: Path) -> None:
    missing = Path("/dev/shm/keepstep-is-not-there/run")
    found = mount_of(missing)
    assert found is not None
    assert found.kind == "tmpfs"
    assert volatile(missing) == "tmpfs (memory)"
    (tmp_path / "link").symlink_to("/dev/shm")
    assert volatile(tmp_path / "link") == "tmpfs (memory)"
