"""What goes with the machine, told from the type of the file system, the path and the environment."""

import pytest

from keepstep.plan.durability import Durability, Home, judge_durability


def judge(kind: str, path: str = "/data/run", root: str = "/", **environment: str) -> Durability:
    return judge_durability(kind, root, path, environment)


@pytest.mark.parametrize(
    ("kind", "home", "reason"),
    [
        ("tmpfs", Home.MEMORY, "tmpfs (memory)"),
        ("ramfs", Home.MEMORY, "ramfs (memory)"),
        ("overlay", Home.CONTAINER, "overlay (a container's own layer)"),
        ("squashfs", Home.CONTAINER, "squashfs (a container's own layer)"),
        ("fuse.fuse-overlayfs", Home.CONTAINER, "fuse.fuse-overlayfs (a container's own layer)"),
    ],
)
def test_memory_and_layers_of_containers_go_with_the_machine(kind: str, home: Home, reason: str) -> None:
    assert judge(kind) == Durability(home, reason)


@pytest.mark.parametrize(
    "kind",
    [
        *("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "9p", "virtiofs"),
        *("fuse", "fuse.gcsfuse", "fuse.s3fs", "fuse.rclone"),
    ],
)
def test_what_lies_on_a_server_stays(kind: str) -> None:
    assert judge(kind, "/content/run", SLURM_JOB_ID="7", TMPDIR="/content") == Durability(Home.REMOTE)


def test_a_local_disk_is_volatile_only_with_a_sign() -> None:
    assert judge("ext4") == Durability(Home.NODE)
    assert judge("xfs", SLURM_JOB_ID="7").volatile == "a node-local disk (xfs) of a SLURM job"
    assert judge("xfs", "/tmp/7/run", TMPDIR="/tmp/7/").volatile == "a node-local disk (xfs, $TMPDIR)"
    assert judge("ext4", "/scr/7", SLURM_TMPDIR="/scr/7", SLURM_JOB_ID="7").volatile == (
        "a node-local disk (ext4, $SLURM_TMPDIR)"
    )
    assert judge("ext4", "/local_scratch/me").volatile == "a node-local disk (ext4, /local_scratch)"
    assert judge("ext4", "/local_scratches/me") == Durability(Home.NODE)
    assert judge("ext4", "/tmp/run", TMPDIR="") == Durability(Home.NODE)


def test_folders_of_notebooks() -> None:
    assert judge("ext4", "/content/run").volatile == "a node-local disk (ext4, /content)"
    assert judge("ext4", "/content/drive/MyDrive/run") == Durability(Home.NODE)
    assert judge("ext4", "/kaggle/working").volatile == "a node-local disk (ext4, /kaggle/working)"


def test_an_empty_dir_of_kubernetes_is_told_from_a_volume() -> None:
    pod = "/var/lib/kubelet/pods/7/volumes"
    assert judge("ext4", root=f"{pod}/kubernetes.io~empty-dir/cache").volatile == "ext4 (an emptyDir volume)"
    assert judge("ext4", root=f"{pod}/kubernetes.io~csi/pvc-7/mount", KUBERNETES_SERVICE_HOST="10.0.0.1") == (
        Durability(Home.NODE)
    )


def test_of_an_unknown_file_system_nothing_is_said() -> None:
    assert judge("newfs", "/content/run", SLURM_JOB_ID="7") == Durability(Home.UNKNOWN)
