"""`keepstep prune`: retention by hand."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keepstep.cli.best import ModeChoice
from keepstep.cli.output import human_size, print_json, printable, table

if TYPE_CHECKING:
    from keepstep.ops.mirror.prune import MirrorPrunePlan
    from keepstep.plan.policies import Rules
    from keepstep.plan.retention import Verdict


def command(
    folder: Annotated[str, typer.Argument(help="A run's folder, or its address on a mirror.")],
    keep: Annotated[
        int | None, typer.Option("--keep", min=1, help="How many of the newest stay; a Trainer's best is one.")
    ] = None,
    keep_every: Annotated[
        int | None, typer.Option("--keep-every", metavar="K", min=1, help="One of every K steps stays for ever.")
    ] = None,
    keep_best: Annotated[
        int | None, typer.Option("--keep-best", metavar="N", min=1, help="The N best by --metric and --mode stay.")
    ] = None,
    metric: Annotated[str | None, typer.Option("--metric", help="What is best is told by it: task/accuracy.")] = None,
    mode: Annotated[
        ModeChoice | None, typer.Option("--mode", help="Whether the highest or the lowest is best.")
    ] = None,
    guard: Annotated[
        list[str] | None, typer.Option("--guard", help="The best must keep it: 'canary/accuracy>=0.9'. Repeatable.")
    ] = None,
    scores: Annotated[
        Path | None, typer.Option("--scores", metavar="FOLDER", help="Where scores.jsonl lies; by default in FOLDER.")
    ] = None,
    keep_younger: Annotated[
        str | None, typer.Option("--keep-younger", metavar="AGE", help="What is younger stays: 90min, 24h, 7d.")
    ] = None,
    disk_budget: Annotated[
        str | None,
        typer.Option(
            "--disk-budget", metavar="SIZE", help="The most that all of it may take: 500GB. Never the newest."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="On a mirror: read what stays first, every byte (of a folder always).")
    ] = False,
    incomplete: Annotated[
        bool, typer.Option("--incomplete", help="On a mirror: delete older folders that are not complete as well.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Delete old checkpoints: what none of the --keep rules keeps. Incomplete and foreign folders are left alone.

    Example: keepstep prune runs/checkpoints/stdlib-lm --keep 2 --keep-every 1000 --dry-run
    """
    from keepstep.errors import ConfigError

    others: dict[str, object] = {"--keep-every": keep_every, "--keep-best": keep_best, "--keep-younger": keep_younger}
    others |= {
        "--disk-budget": disk_budget,
        "--metric": metric,
        "--mode": mode,
        "--scores": scores,
        "--guard": guard or None,
    }
    given = [name for name, value in others.items() if value is not None]
    if "://" in folder:
        if given:
            raise ConfigError(f"{given[0]} is for folders; on a mirror the newest stay: --keep N")
        if keep is None:
            raise ConfigError("--keep: say how many of the newest stay on the mirror")
        _prune_mirror(folder, keep, dry_run=dry_run, verify=verify, incomplete=incomplete, as_json=as_json)
        return
    if incomplete:
        raise ConfigError("--incomplete is for mirrors: in a folder, what is not complete is left alone")
    rules = _rules(Path(folder), keep_every, keep_best, metric, mode, guard or [], scores, keep_younger, disk_budget)
    if keep is None and not rules.policies and rules.budget_bytes is None:
        raise ConfigError(
            "say what stays: --keep N, --keep-every K, --keep-best N, --keep-younger AGE, --disk-budget SIZE"
        )
    # With a budget alone all stay that fit; whoever names what stays means that the rest goes, but for the newest.
    newest = 1 if keep is None and rules.policies else keep
    _prune_folder(Path(folder), newest, rules, scores, dry_run=dry_run, as_json=as_json)


def _rules(
    folder: Path,
    every: int | None,
    best: int | None,
    metric: str | None,
    mode: ModeChoice | None,
    guards: Sequence[str],
    scores: Path | None,
    younger: str | None,
    budget: str | None,
) -> "Rules":
    from dataclasses import replace

    from keepstep.cli.durations import parse_seconds
    from keepstep.config.bounds import parse_guard
    from keepstep.errors import ConfigError
    from keepstep.plan.policies import Best, EverySteps, Rules, YoungerThan
    from keepstep.plan.retention import Policy
    from keepstep.plan.weight_files import SizeError, parse_size

    policies: list[Policy] = []
    if every is not None:
        policies.append(EverySteps(every))
    if best is not None:
        if metric is None or mode is None:
            raise ConfigError("--keep-best needs --metric NAME and --mode max or min")
        bounds = [parse_guard(text) for text in guards]
        known = _known_names(folder, scores, [metric, *(one.metric for one in bounds)])
        bounds = [replace(one, metric=name) for one, name in zip(bounds, known[1:], strict=True)]
        policies.append(Best(known[0], mode.value, best, tuple(bounds)))
    elif metric is not None or mode is not None or scores is not None or guards:
        raise ConfigError("--metric, --mode, --guard and --scores belong to --keep-best N")
    if younger is not None:
        policies.append(YoungerThan(parse_seconds(younger, "--keep-younger")))
    try:
        return Rules(tuple(policies), None if budget is None else parse_size(budget))
    except SizeError as error:
        raise ConfigError(f"--disk-budget: {error}") from None


def _known_names(folder: Path, scores: Path | None, names: Sequence[str]) -> list[str]:
    """The metrics' full names. One that nobody has ever measured would keep nothing: that is a slip."""
    from keepstep.errors import ConfigError
    from keepstep.ops.prune import scores_to_keep_by
    from keepstep.plan.metrics import full_name, names_in

    known = names_in(scores_to_keep_by(scores or folder))
    found = [full_name(name, known) for name in names]
    for name in found:
        if name not in known:
            raise ConfigError(f"no checkpoint has a metric {name}; there are: {', '.join(known) or 'none at all'}")
    return found


def _prune_folder(
    folder: Path, keep: int | None, rules: "Rules", scores: Path | None, *, dry_run: bool, as_json: bool
) -> None:
    from keepstep.ops.prune import apply_prune, plan_prune

    plan = plan_prune(folder, keep, rules, scores)
    if not dry_run:
        plan = apply_prune(plan)
    if as_json:
        print_json(plan, dry_run=dry_run)
        return
    for problem in plan.damaged:
        print(f"damaged, does not count and stays: {problem}")
    _print_verdicts(plan.prefix, plan.verdicts, dry_run=dry_run)
    if plan.put_away:
        print(f"{human_size(plan.put_away)} lie in quarantine or were set aside ({folder}/.keepstep): yours to delete")
    if plan.over_budget:
        apart = f"; readers and uploads hold {human_size(plan.apart)} for now" if plan.apart else ""
        print(f"what must stay is {human_size(plan.over_budget)} more than the disk budget{apart}")
    print(f"{human_size(plan.freed)} {'would be freed' if dry_run else 'freed'}, {human_size(plan.kept)} kept")


def _print_verdicts(prefix: str, verdicts: "Sequence[Verdict]", *, dry_run: bool) -> None:
    deleted = "would delete" if dry_run else "deleted"
    rows = [
        (f"{prefix}-{one.step}", human_size(one.size), "keep" if one.keep else deleted, printable(one.reason))
        for one in verdicts
    ]
    if rows:
        print(table(("CHECKPOINT", "SIZE", "VERDICT", "WHY"), rows))


def _prune_mirror(text: str, keep: int, *, dry_run: bool, verify: bool, incomplete: bool, as_json: bool) -> None:
    from keepstep.cli.progress import Bar
    from keepstep.ops.mirror.prune import apply_mirror_prune, plan_mirror_prune
    from keepstep.ops.place import address_of

    address = address_of(text, to_write=True)
    with Bar("reading") as bar:
        plan = plan_mirror_prune(address, keep, read_bytes=verify, watch=bar)
    if not dry_run:
        apply_mirror_prune(plan, address, incomplete=incomplete)
    if as_json:
        print_json(plan, dry_run=dry_run)
        return
    _print_mirror(plan, dry_run=dry_run, incomplete=incomplete)


def _print_mirror(plan: "MirrorPrunePlan", *, dry_run: bool, incomplete: bool) -> None:
    for problem in plan.damaged:
        print(f"damaged, does not count and stays: {printable(problem)}")
    _print_verdicts(plan.prefix, plan.verdicts, dry_run=dry_run)
    for one in plan.incomplete:
        text = f"{one.name} ({human_size(one.size)}): not complete ({printable(one.problem)})"
        if one.is_recent:
            print(f"left alone {text}; its upload may not be over, it is not an hour old")
        elif incomplete:
            print(f"{'would delete' if dry_run else 'deleted'} {text}")
        else:
            print(f"left alone {text}; --incomplete deletes it")
    print(f"{human_size(plan.freed)} {'would be freed' if dry_run else 'freed'}")
