"""What `keepstep doctor` measures of a folder; `plan/doctor.py` judges it."""

from dataclasses import dataclass, field

from keepstep.plan.durability import Durability, Home


@dataclass(frozen=True)
class Tried:
    """One operation. `problem` is empty when it worked; `seconds` is what it took."""

    problem: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Seen:
    """What another process saw of a new file or a renamed folder.

    Attributes:
        late: seconds from the end of the operation until it saw the name and all that belongs to it; None: it gave up.
        torn: it saw the name, and something else under it than all of the content.
    """

    late: float | None = 0.0
    torn: bool = False


@dataclass(frozen=True)
class Speed:
    """Bytes that were written (with their sync) and read back past the cache; `differs`: they came back otherwise."""

    size: int
    write_seconds: float
    read_seconds: float
    differs: bool = False

    @property
    def write_rate(self) -> float:
        """Bytes a second."""
        return self.size / max(self.write_seconds, 1e-9)

    @property
    def read_rate(self) -> float:
        """Bytes a second."""
        return self.size / max(self.read_seconds, 1e-9)


@dataclass(frozen=True)
class Shared:
    """What the ranks of a launch saw of each other's files.

    Attributes:
        world_size: of the launch.
        apart: ranks that rank 0 does not see, or that do not see it.
        waited: seconds.
    """

    world_size: int
    apart: tuple[int, ...] = ()
    waited: float = 0.0


@dataclass(frozen=True)
class Wishes:
    """What the folder is to be good for.

    Attributes:
        keep: checkpoints that remain after a save.
        size: bytes of one; None: as large as those that are there.
        grace: seconds from a stop signal to the kill; None: not known.
        amount: bytes that are written and read to measure speed; 0: none.
    """

    keep: int = 2
    size: int | None = None
    grace: float | None = None
    amount: int = 256 * 2**20


@dataclass(frozen=True)
class Facts:
    """All that was measured. What stands at None was not tried, since something before it failed or was not asked for.

    Attributes:
        folder: the folder.
        kind, source: of the file system; empty where the system does not tell.
        durability: whether it goes with the machine.
        written: a small file written, synced and read back.
        synced: the sync of such a file; `synced_folder`: of a folder.
        seen: what another process saw of a new file.
        renamed, seen_renamed: the rename of a folder of several files, and what another process saw of it.
        rename_grows: seconds of the rename of a folder of one file and of eight; the best of several.
        exchanged, linked, direct: two folders that change names in one step, a hard link, a write past the cache.
        skew: seconds that the clock of the file system is ahead of this machine's.
        free: bytes; None where it does not say.
        checkpoints, checkpoint_size: how many complete ones are there, and bytes of the newest.
        speed: of large writes and reads.
        shared: under torchrun.
    """

    folder: str
    kind: str = ""
    source: str = ""
    durability: Durability = field(default_factory=lambda: Durability(Home.UNKNOWN))
    written: Tried | None = None
    synced: Tried | None = None
    synced_folder: Tried | None = None
    seen: Seen | None = None
    renamed: Tried | None = None
    seen_renamed: Seen | None = None
    rename_grows: tuple[float, float] | None = None
    exchanged: Tried | None = None
    linked: Tried | None = None
    direct: Tried | None = None
    skew: float | None = None
    free: int | None = None
    checkpoints: int = 0
    checkpoint_size: int | None = None
    speed: Speed | None = None
    shared: Shared | None = None
