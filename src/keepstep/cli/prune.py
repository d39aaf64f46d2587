"""`keepstep prune`: retention by hand."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keepstep.cli.output import human_size, print_json, printable

if TYPE_CHECKING:
    from keepstep.ops.mirror.prune import MirrorPrunePlan


def command(
    folder: Annotated[str, typer.Argument(help="A run's folder, or its address on a mirror.")],
    keep: Annotated[int, typer.Option("--keep", min=1, help="How many of the newest stay; a Trainer's best is one.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="On a mirror: read what stays first, every byte (of a folder always).")
    ] = False,
    incomplete: Annotated[
        bool, typer.Option("--incomplete", help="On a mirror: delete older folders that are not complete as well.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Delete old checkpoints. Incomplete and foreign folders are left alone.

    Example: keepstep prune runs/checkpoints/stdlib-lm --keep 2 --dry-run
    """
    if "://" in folder:
        _prune_mirror(folder, keep, dry_run=dry_run, verify=verify, incomplete=incomplete, as_json=as_json)
        return
    if incomplete:
        from keepstep.errors import ConfigError

        raise ConfigError("--incomplete is for mirrors: in a folder, what is not complete is left alone")
    _prune_folder(Path(folder), keep, dry_run=dry_run, as_json=as_json)


def _prune_folder(folder: Path, keep: int, *, dry_run: bool, as_json: bool) -> None:
    from keepstep.ops.prune import apply_prune, plan_prune

    plan = plan_prune(folder, keep)
    if not dry_run:
        apply_prune(plan)
    if as_json:
        print_json(plan, dry_run=dry_run)
        return
    for problem in plan.damaged:
        print(f"damaged, does not count and stays: {problem}")
    for verdict in plan.verdicts:
        word = "keep" if verdict.keep else ("would delete" if dry_run else "deleted")
        print(f"{word} {plan.prefix}-{verdict.step}: {verdict.reason}")
    if plan.put_away:
        print(f"{human_size(plan.put_away)} lie in quarantine or were set aside ({folder}/.keepstep): yours to delete")
    print(f"{human_size(plan.freed)} {'would be freed' if dry_run else 'freed'}")


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
    deleted = "would delete" if dry_run else "deleted"
    for problem in plan.damaged:
        print(f"damaged, does not count and stays: {printable(problem)}")
    for verdict in plan.verdicts:
        print(f"{'keep' if verdict.keep else deleted} {plan.prefix}-{verdict.step}: {verdict.reason}")
    for one in plan.incomplete:
        text = f"{one.name} ({human_size(one.size)}): not complete ({printable(one.problem)})"
        if one.is_recent:
            print(f"left alone {text}; its upload may not be over, it is not an hour old")
        else:
            print(f"{deleted} {text}" if incomplete else f"left alone {text}; --incomplete deletes it")
    print(f"{human_size(plan.freed)} {'would be freed' if dry_run else 'freed'}")
