"""`keepstep best`: which checkpoint to take."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keepstep.cli.output import print_json, printable, table
from keepstep.cli.places import place_of

if TYPE_CHECKING:
    from keepstep.ops.best import Best


class ModeChoice(StrEnum):
    """What `--mode` takes."""

    max = "max"
    min = "min"


def command(
    folder: Annotated[str, typer.Argument(help="A run's folder, or its address on a mirror.")],
    metric: Annotated[
        str | None, typer.Option("--metric", help="What decides: task/accuracy. Left out: says what there is.")
    ] = None,
    mode: Annotated[
        ModeChoice | None, typer.Option("--mode", help="Whether the highest or the lowest is best.")
    ] = None,
    guard: Annotated[
        list[str] | None, typer.Option("--guard", help="A bound that must be kept: 'canary/accuracy>=0.9'. Repeatable.")
    ] = None,
    scores: Annotated[
        Path | None, typer.Option("--scores", metavar="FOLDER", help="Where scores.jsonl lies; by default in FOLDER.")
    ] = None,
    pin: Annotated[bool, typer.Option("--pin", help="Pin the chosen one, with the reason as its note.")] = False,
    only_path: Annotated[bool, typer.Option("--path", help="Print only the path of the chosen one.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Choose the best checkpoint by its scores. The last line is its path.

    Example: keepstep best runs/checkpoints/stdlib-lm --metric task/accuracy --mode max --guard "canary/accuracy>=0.9"
    """
    from keepstep.errors import ConfigError, NothingToChooseError
    from keepstep.ops.best import find_best, metrics_of, pin_best
    from keepstep.plan.choice import why_none

    place = place_of(folder)
    if metric is None:
        raise ConfigError(f"--metric: say which; there are: {_listed(metrics_of(place, scores))}")
    if mode is None:
        raise ConfigError(f"--mode: say whether the highest {metric} is the best (max) or the lowest (min)")
    if only_path and as_json:
        raise ConfigError("--path and --json do not go together")
    if pin and not isinstance(place, Path):
        raise ConfigError(f"--pin: {place} is a mirror; only what lies in a folder is pinned")
    found = find_best(place, metric, mode.value, guard or (), scores)
    if found.unreadable_lines:
        print(f"keepstep: {found.unreadable_lines} lines of the scores are none and do not count", file=sys.stderr)
    if as_json:
        _print_json(found)
    elif not only_path and found.choice.rows:
        print(_table_of(found))
    if found.path is None:
        raise NothingToChooseError(f"{folder}: nothing to choose by {found.choice.metric}: {why_none(found.choice)}")
    if pin:
        pin_best(found)
    if not as_json:
        print(found.path)


def _listed(metrics: dict[str, int]) -> str:
    named = ", ".join(f"{name} (of {count} checkpoints)" for name, count in metrics.items())
    return named or "none, no checkpoint is scored yet"


def _table_of(found: "Best") -> str:
    from keepstep.plan.metrics import shown

    metrics = found.choice.metrics
    rows = [
        (
            str(row.step),
            *(shown(row.values[name]) if name in row.values else "-" for name in metrics),
            row.standing.value,
            printable(row.reason),
        )
        for row in found.choice.rows
    ]
    return table(("STEP", *(printable(name) for name in metrics), "STATE", "WHY"), rows)


def _print_json(found: "Best") -> None:
    from dataclasses import asdict

    from keepstep.plan.scores import writable

    choice = asdict(found.choice)
    for row in choice["rows"]:
        row["values"] = {name: writable(value) for name, value in row["values"].items()}
    for guard in choice["guards"]:
        guard["number"] = writable(guard["number"])
    print_json({"folder": found.folder, "path": found.path, **choice, "unreadable_lines": found.unreadable_lines})
