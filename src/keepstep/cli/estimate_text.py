"""An estimate as text."""

from keepstep.cli.output import human_size, printable, table
from keepstep.plan.estimate import Estimate


def print_estimate(found: Estimate) -> None:
    """Print an estimate: a table, then what follows from it."""
    print(f"{printable(found.source)}{_numbers(found)}")
    several = found.world > 1
    header = ("PART", "SIZE", f"OF {found.world} RANKS, THE FULLEST") if several else ("PART", "SIZE")
    rows = [_row(part.name, part.size, part.rank_size, several=several) for part in found.parts]
    print(table(header, [*rows, _row("one checkpoint", found.size, found.rank_size, several=several)]))
    print()
    if found.kept_size is not None and found.peak_size is not None:
        print(f"{found.keep} kept: {human_size(found.kept_size)}; at most, while one is written: ", end="")
        print(human_size(found.peak_size))
    elif found.keep is None:
        print("give --keep for the size of all that remain")
    if found.free is not None:
        need = found.size if found.peak_size is None else found.peak_size
        short = "" if need <= found.free else f", which is {human_size(need - found.free)} too few"
        print(f"free there: {human_size(found.free)}{short}")
    if found.rates is not None and found.save_seconds is not None and found.resume_seconds is not None:
        who = "each rank" if found.rates.each_rank else "in all"
        rates = f"writes {human_size(int(found.rates.write))}/s, reads {human_size(int(found.rates.read))}/s, {who}"
        print(
            f"a save takes about {_duration(found.save_seconds)}, a resume {_duration(found.resume_seconds)} ({rates})"
        )
    print(f"mode: async takes {human_size(found.rank_size)} of host memory{' on that rank' if several else ''}")
    for assumption in found.assumptions:
        print(f"assumed: {assumption}")
    for note in found.notes:
        print(f"note: {printable(note)}")


def _numbers(found: Estimate) -> str:
    if found.parameters is None:
        return ""
    trained = found.trained
    if trained is None:
        return f": {found.parameters:,} numbers in the model"
    return f": {found.parameters:,} parameters, {'all' if trained == found.parameters else f'{trained:,}'} trained"


def _row(name: str, size: int, rank_size: int | None, *, several: bool) -> tuple[str, ...]:
    return (name, human_size(size), human_size(rank_size)) if several else (name, human_size(size))


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
