"""A SLURM of one machine in a folder: munged, slurmctld and slurmd with ports and files of their own."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")

_CONFIG = """\
ClusterName=rig
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=6
CredType=cred/munge
SlurmctldPort={controller}
SlurmdPort={daemon}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
JobRequeue=1
KillWait=60
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Why there can be no SLURM here; empty where there can."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"not installed: {', '.join(absent)} (Debian: slurm-wlm, munge)"
    return "" if os.geteuid() == 0 else "slurmd needs root"


def until(holds: Callable[[], bool], seconds: float, what: Callable[[], str]) -> None:
    """Wait for a condition; fails with what `what` says when it does not come."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


class Slurm:
    """A cluster that runs; `command` speaks to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def command(self, *words: str, cwd: Path | None = None) -> str:
        """What a command of SLURM's prints."""
        done = subprocess.run(
            words, env=self.environment, cwd=cwd, capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def field(self, job: str, name: str) -> str:
        """A field of what SLURM shows of a job, such as JobState."""
        shown = self.command("scontrol", "-o", "show", "job", job)
        return next(word.partition("=")[2] for word in shown.split() if word.startswith(f"{name}="))

    def await_state(self, job: str, state: str, seconds: float = 120) -> None:
        """Wait until a job is in a state."""
        until(lambda: self.field(job, "JobState") == state, seconds, lambda: self.command("scontrol", "show", "job"))


@contextmanager
def cluster(folder: Path) -> Iterator[Slurm]:
    """Run a SLURM in a folder (short: it holds a socket); nothing of it is left afterwards."""
    (folder / "state").mkdir(parents=True)
    (folder / "spool").mkdir()
    folder.chmod(0o755)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(64))
    key.chmod(0o600)
    host = socket.gethostname().partition(".")[0]
    controller, daemon = _free_ports()
    (folder / "slurm.conf").write_text(_CONFIG.format(host=host, folder=folder, controller=controller, daemon=daemon))
    slurm = Slurm(folder)
    munge = ["--foreground", "--force", "--num-threads=2", f"--key-file={key}", f"--socket={folder}/munge.socket"]
    munge += [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed")]
    daemons: list[subprocess.Popen[bytes]] = []

    def begin(*words: str) -> None:
        with (folder / f"{words[0]}.out").open("wb") as out:
            daemons.append(subprocess.Popen(words, env=slurm.environment, stdout=out, stderr=out))

    try:
        begin("munged", *munge)
        until((folder / "munge.socket").exists, 20, lambda: (folder / "munged.out").read_text())
        begin("slurmctld", "-D")
        begin("slurmd", "-D")
        until(lambda: "idle" in _nodes(slurm), 40, lambda: (folder / "slurmctld.out").read_text())
        yield slurm
    finally:
        _end_jobs(slurm)
        for one in reversed(daemons):
            one.terminate()
            with suppress(subprocess.TimeoutExpired):
                one.wait(20)
            one.kill()
            one.wait()
        _end_what_is_left(slurm)


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        return one.getsockname()[1], two.getsockname()[1]


def _nodes(slurm: Slurm) -> str:
    done = subprocess.run(
        ["sinfo", "-h", "-o", "%T"], env=slurm.environment, capture_output=True, text=True, timeout=30
    )
    return done.stdout


def _jobs(slurm: Slurm) -> str:
    done = subprocess.run(["squeue", "-h"], env=slurm.environment, capture_output=True, text=True, timeout=30)
    return done.stdout


def _end_jobs(slurm: Slurm) -> None:
    subprocess.run(["scancel", "--user=root"], env=slurm.environment, capture_output=True, timeout=30)
    with suppress(AssertionError):
        until(lambda: not _jobs(slurm), 20, str)


def _end_what_is_left(slurm: Slurm) -> None:
    """Processes of jobs, and their daemons, have this cluster's configuration in their environment."""
    mark = f"SLURM_CONF={slurm.environment['SLURM_CONF']}\0".encode()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (path / "environ").read_bytes():
                os.kill(int(path.name), signal.SIGKILL)
