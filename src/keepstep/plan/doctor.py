"""Judges whether a folder is fit to hold checkpoints."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from keepstep.plan.doctor_facts import Facts, Wishes

# Ranks look again for so long before they call a folder not shared (the sum of the pauses of a start).
_PATIENCE = 3.75
_SLOW_SYNC = 1.0
_SKEW = 60.0
# Seconds that a rename may take longer for no reason of its own.
_NOISE = 0.02


class Level(Enum):
    """How bad a finding is."""

    FINE = "fine"
    WARNING = "warning"
    UNFIT = "unfit"


@dataclass(frozen=True)
class Finding:
    """What was found, and, where it is not fine, why it matters and what to do about it."""

    topic: str
    level: Level
    what: str
    why: str = ""
    to_do: str = ""


def judge_folder(facts: Facts, wishes: Wishes) -> tuple[Finding, ...]:
    """All findings, in the order in which the facts were gathered. What was not tried is not judged."""
    judges = (_where, _writing, _syncing, _listing, _renaming, _fallbacks, _clock, _reading, _space, _speed, _sharing)
    return tuple(finding for judge in judges for finding in judge(facts, wishes))


def is_fit(findings: tuple[Finding, ...]) -> bool:
    """Whether nothing speaks against saving there; warnings do not."""
    return all(finding.level is not Level.UNFIT for finding in findings)


def size_of_one(facts: Facts, wishes: Wishes) -> int | None:
    """Bytes of one checkpoint: what was said, else what is there."""
    return wishes.size if wishes.size is not None else facts.checkpoint_size


def _where(facts: Facts, wishes: Wishes) -> Iterator[Finding]:
    what = f"{facts.kind or 'unknown'}{f' ({facts.source})' if facts.source else ''}"
    if facts.durability.volatile:
        yield Finding(
            "file system",
            Level.WARNING,
            f"{what}: it lies on {facts.durability.volatile}",
            "it goes with the machine: when that is reclaimed, or its container ends, all checkpoints are lost",
            "save to a mounted drive or a network file system, or have a copy made elsewhere (checkpointing.mirror)",
        )
    else:
        yield Finding("file system", Level.FINE, f"{what}; no sign that it goes with the machine")


def _writing(facts: Facts, wishes: Wishes) -> Iterator[Finding]:
    if facts.written is None:
        return
    if facts.written.problem:
        yield Finding(
            "write",
            Level.UNFIT,
            f"cannot be written: {facts.written.problem}",
            "nothing can be saved here",
            "look at owner, permissions, quota and whether it is mounted read-only, or take another folder",
        )
        return
    yield Finding("write", Level.FINE, "can be written, and reads back what was written")


def _syncing(facts: Facts, wishes: Wishes) -> Iterator[Finding]:
    if facts.synced is not None:
        if facts.synced.problem:
            yield Finding(
                "sync of a file",
                Level.UNFIT,
                f"fsync of a file fails: {facts.synced.problem}",
                "a save must know that its bytes are on the disk before it commits",
                "take another folder, or mount it so that fsync works",
            )
        else:
            yield _timed("sync of a file", facts.synced.seconds)
    if facts.synced_folder is None:
        return
    if facts.synced_folder.problem:
        yield Finding(
            "sync of a folder",
            Level.WARNING,
            f"fsync of a folder fails: {facts.synced_folder.problem}",
            "the rename that commits a save may be lost with the server's power; the one before it then stands",
            "nothing, if the server makes renames durable itself, as most do",
        )
    else:
        yield _timed("sync of a folder", facts.synced_folder.seconds)


def _timed(topic: str, seconds: float) -> Finding:
    if seconds <= _SLOW_SYNC:
        return Finding(topic, Level.FINE, f"{_duration(seconds)}")
    why, to_do = "a save makes about ten of them", "save less often, or in the background (mode: async)"
    return Finding(topic, Level.WARNING, f"takes {_duration(seconds)}", why, to_do)


def _listing(facts: Facts, wishes: Wishes) -> Iterator[Finding]:
    if facts.seen is None:
        return
    topic = "another process sees a new file"
    if facts.seen.late is None:
        yield Finding(
            topic,
            Level.UNFIT,
            "not within 10 s",
            "ranks and later starts look for checkpoints by listing this folder",
            "mount it without caching of listings",
        )
    elif facts.seen.late > _PATIENCE:
        yield Finding(
            topic,
            Level.WARNING,
            f"{_duration(facts.seen.late)} late",
            f"the ranks of a job wait {_PATIENCE} s for each other's files before they call a folder not shared",
            "mount it with a shorter cache of listings",
        )
    else:
        yield Finding(topic, Level.FINE, "at once" if facts.seen.late < 0.05 else f"after {_duration(facts.seen.late)}")


def _renaming(facts: Facts, wishes: Wishes) -> Iterator[Finding]:
    if facts.renamed is None:
        return
    topic, grows = "rename of a folder", facts.rename_grows or (0.0, 0.0)
    elsewhere = "save to another folder, and let it be copied here when it is committed"
    if facts.renamed.problem:
        yield Finding(topic, Level.UNFIT, f"fails: {facts.renamed.problem}", "a rename commits each save", elsewhere)
    elif (facts.seen_renamed is not None and facts.seen_renamed.torn) or grows[1] > 3 * grows[0] + _NOISE:
        how = f"{_duration(grows[0])} with one file in it, {_duration(grows[1])} with eight"
        yield Finding(
            topic,
            Level.WARNING,
            f"is not one step ({how}): its files are most likely moved or copied one by one",
            "one that is cut off leaves parts under both names. A start sees that from the manifest and takes the "
            "checkpoint before it, so there must be one: keep 2 or more",
            elsewhere,
        )
    elif facts.seen_renamed is not None and facts.seen_renamed.late is None:
        why = "ranks and later starts look for checkpoints by listing this folder"
        to_do = "mount it without caching of listings"
        yield Finding(topic, Level.UNFIT, "another process does not see it within 10 s", why, to_do)
    elif facts.renamed.seconds > _SLOW_SYNC:
        why = "each save and each deletion makes one; a slow one is most often a copy of all files"
        yield Finding(topic, Level.WARNING, f"takes {_duration(facts.renamed.seconds)}", why, elsewhere)
    else:
        yield Finding(topic, Level.FINE, f"one step, {_duration(facts.renamed.seconds)}")


def _fallbacks(facts: Facts, wishes: Wishes) -> Iterator[Finding]:
    told = (
        ("exchange of two folders", facts.exchanged, "a step that is saved again: the old one is set aside first"),
        (
            "hard links",
            facts.linked,
            "locks and notes are made by exclusive creation; --from copies instead of linking",
        ),
        ("O_DIRECT", facts.direct, "large writes go through the cache, and cost memory there"),
    )
    for topic, tried, instead in told:
        if tried is not None:
            yield Finding(topic, Level.FINE, f"not here ({tried.problem}); {instead}" if tried.problem else "works")


def _clock(facts: Facts, wishes: Wishes) -> Iterator[Finding]:
    if facts.skew is None:
        return
    if abs(facts.skew) <= _SKEW:
        yield Finding("clock", Level.FINE, f"{abs(facts.skew):.1f} s apart from this machine's")
        return
    yield Finding(
        "clock",
        Level.WARNING,
        f"{_duration(abs(facts.skew))} {'ahead of' if facts.skew > 0 else 'behind'} this machine's",
        "keepstep tells age by the clock of the file system alone; other tools (find -mmin, make, rsync) do not",
        "set the clocks, if you can",
    )


def _reading(facts: Facts, wishes: Wishes) -> Iterator[Finding]:
    if facts.speed is not None and facts.speed.differs:
        yield Finding(
            "read back",
            Level.UNFIT,
            f"of {_bytes(facts.speed.size)} that were written, other bytes were read",
            "every checkpoint would count as damaged",
            "do not use it; test the disk and the memory of this machine",
        )


def _space(facts: Facts, wishes: Wishes) -> Iterator[Finding]:
    if facts.free is None:
        yield Finding("space", Level.FINE, "the file system does not say how much is free")
        return
    size = size_of_one(facts, wishes)
    if size is None:
        yield Finding("space", Level.FINE, f"{_bytes(facts.free)} free; give --size to hear whether that is enough")
        return
    # The new one is written before the oldest goes; what is there already has its room.
    more = max(1, wishes.keep + 1 - facts.checkpoints)
    text = f"{_bytes(facts.free)} free, {_bytes(more * size)} needed ({more} more of {_bytes(size)})"
    if facts.free >= more * size:
        yield Finding("space", Level.FINE, text)
        return
    why = f"with {wishes.keep} to keep there are {wishes.keep + 1} for a moment, and a save without room fails"
    yield Finding("space", Level.UNFIT, text, why, "free some space, or keep fewer (num_to_keep)")


def _speed(facts: Facts, wishes: Wishes) -> Iterator[Finding]:
    if facts.speed is None:
        return
    speed, size = facts.speed, size_of_one(facts, wishes)
    rates = f"writes {_bytes(speed.write_rate)}/s, reads {_bytes(speed.read_rate)}/s ({_bytes(speed.size)} measured)"
    yield Finding("speed", Level.FINE, rates)
    if size is None:
        return
    seconds = size / speed.write_rate
    text = f"about {_duration(seconds)} for {_bytes(size)} from one process"
    if wishes.grace is None or seconds <= wishes.grace:
        more = "" if wishes.grace is None else f", of {_duration(wishes.grace)} grace"
        yield Finding("time of a save", Level.FINE, text + more)
        return
    why = f"a stop leaves {_duration(wishes.grace)}: no save is begun then, and the steps since the last one are lost"
    to_do = "save more often, or to something faster; ask for a longer grace"
    yield Finding("time of a save", Level.WARNING, text, why, to_do)


def _sharing(facts: Facts, wishes: Wishes) -> Iterator[Finding]:
    if facts.shared is None:
        return
    shared = facts.shared
    if not shared.apart:
        yield Finding("ranks", Level.FINE, f"all {shared.world_size} see each other's files")
        return
    who = ", ".join(map(str, shared.apart[:8])) + (" and more" if len(shared.apart) > 8 else "")
    yield Finding(
        "ranks",
        Level.UNFIT,
        f"rank 0 and rank {who} do not see each other's files within {_duration(shared.waited)}",
        "every rank writes its shard into one folder",
        "take a folder on a file system that all nodes mount",
    )


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _bytes(size: float) -> str:
    units: tuple[tuple[str, float], ...] = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
    return next((f"{size / unit:.1f} {name}" for name, unit in units if size >= unit), f"{size:.0f} B")
