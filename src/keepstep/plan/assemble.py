"""Which checkpoint can be put together from the parts of it that lie on several hosts, and who sends what to whom."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from keepstep.plan.manifest import Manifest
from keepstep.plan.retention import Verdict, plan_retention

_SHOWN = 3


@dataclass(frozen=True, order=True)
class Version:
    """One save of a step. Parts with another manifest are of another save.

    Attributes:
        step: completed steps.
        attempt: of the run that saved it.
        manifest: digest of the manifest.
    """

    step: int
    attempt: int
    manifest: str


# What a host holds of each save: the names of the files that are there as they were written.
Holding = Mapping[Version, Collection[str]]


@dataclass(frozen=True, order=True)
class Transfer:
    """A file goes from one host to another (their numbers)."""

    source: int
    target: int
    file: str


@dataclass(frozen=True)
class Lost:
    """A save that cannot be put together. `files` are on no host."""

    version: Version
    files: tuple[str, ...]

    def __str__(self) -> str:
        more = f" and {len(self.files) - _SHOWN} more files" if len(self.files) > _SHOWN else ""
        return f"save-{self.version.step}: {', '.join(self.files[:_SHOWN])}{more} (of {_ranks(self.files)}) on no host"


@dataclass(frozen=True)
class Assembly:
    """What a start takes.

    Attributes:
        version: the save; None when none can be put together, or there is none.
        passed: newer ones that cannot; all of them where `version` is None.
        possible: steps of all that can be put together, newest first.
    """

    version: Version | None
    passed: tuple[Lost, ...]
    possible: tuple[int, ...]


def choose(
    holdings: Sequence[Holding], manifests: Mapping[Version, Manifest], requested: int | None = None
) -> Assembly:
    """The newest save of which the hosts together hold every file.

    An attempt saves only beyond the step that it began with. So where a later attempt has saved an earlier step, what
    earlier attempts saved beyond it is of a line that was left, and comes last.

    Args:
        holdings: of each host.
        manifests: of each save that a host holds something of.
        requested: this step and no other; None for the newest.
    """
    lost = {version: missing(holdings, version, manifests[version]) for version in manifests}
    whole = [version for version, files in lost.items() if not files]
    left = {v for v in whole if any(o.attempt > v.attempt and o.step <= v.step for o in whole)}
    # Of two saves of one step by one attempt the one that more hosts have committed is as good as the other.
    spread = {v: sum(v in holding for holding in holdings) for v in whole}
    ordered = sorted(whole, key=lambda v: (v not in left, v.step, v.attempt, spread[v], v.manifest), reverse=True)
    steps = tuple(dict.fromkeys(v.step for v in ordered))
    wanted = [v for v in ordered if requested in (None, v.step)]
    version = wanted[0] if wanted else None
    newer = [v for v, files in lost.items() if files and (version is None or v.step > version.step)]
    passed = tuple(Lost(v, lost[v]) for v in sorted(newer, reverse=True) if requested in (None, v.step))
    return Assembly(version, passed, steps)


def missing(holdings: Sequence[Holding], version: Version, manifest: Manifest) -> tuple[str, ...]:
    """The files of a save that are on no host."""
    held = {file for holding in holdings for file in holding.get(version, ())}
    return tuple(sorted(set(manifest.files) - held))


def plan_transfers(holdings: Sequence[Holding], version: Version, manifest: Manifest) -> tuple[Transfer, ...]:
    """What is sent so that every host holds the whole save. A file comes from the holder that has least to send.

    Raises:
        ValueError: a file is on no host.
    """
    if lost := missing(holdings, version, manifest):
        raise ValueError(f"{lost[0]} is on no host")
    held = [set(holding.get(version, ())) for holding in holdings]
    load = [0] * len(holdings)
    transfers = []
    for file, record in sorted(manifest.files.items(), key=lambda one: (-one[1].size, one[0])):
        holders = [host for host, files in enumerate(held) if file in files]
        for target, files in enumerate(held):
            if file not in files:
                source = min(holders, key=load.__getitem__)
                load[source] += record.size
                transfers.append(Transfer(source, target, file))
    return tuple(transfers)


def plan_host_retention(
    holdings: Sequence[Holding],
    manifests: Mapping[Version, Manifest],
    num_to_keep: int | None,
    protected: Collection[int] = (),
    held: Collection[int] = (),
) -> tuple[Verdict, ...]:
    """What stays on all hosts. A step counts when it can be put together.

    What cannot goes when it is older than all that is kept: nobody could take it for the newest, and nothing else would
    ever delete it.

    Args:
        holdings: of each host.
        manifests: of each save that a host holds something of.
        num_to_keep: how many steps remain; None keeps all.
        protected: steps that stay in any case; they count.
        held: steps that are pinned or read; they stay and do not count.

    Returns:
        A verdict for each step, oldest first.
    """
    whole = {version.step for version, manifest in manifests.items() if not missing(holdings, version, manifest)}
    verdicts = list(plan_retention(whole, num_to_keep, protected, held))
    oldest = min((one.step for one in verdicts if one.keep), default=0)
    for step in {version.step for version in manifests} - whole:
        keep = num_to_keep is None or step >= oldest or step in {*protected, *held}
        verdicts.append(Verdict(step, keep, "files of it are on no host"))
    return tuple(sorted(verdicts, key=lambda one: one.step))


def _ranks(files: Sequence[str]) -> str:
    """Which ranks wrote these files: `__<rank>_<n>.distcp` and `__<rank>.index`."""
    stems = {file.removeprefix("__").split("_")[0].split(".")[0] for file in files if file.startswith("__")}
    ranks = sorted(int(stem) for stem in stems if stem.isdecimal())
    parts = [f"rank {rank}" for rank in ranks[:_SHOWN]]
    if len(ranks) > _SHOWN:
        parts.append(f"{len(ranks) - _SHOWN} more ranks")
    if any(not file.startswith("__") for file in files):
        parts.append("the main process")
    return ", ".join(parts)
