"""`keepstep adopt`: checkpoints that a Trainer wrote without keepstep become ones that are verified."""

from pathlib import Path
from typing import Annotated

import typer

from keepstep.cli.output import human_size, print_json, printable


def command(
    folder: Annotated[Path, typer.Argument(help="A Trainer's output folder, or one checkpoint-<step> in it.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be adopted.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Give a Trainer's checkpoints digests and a manifest; exits with 1 when one is not whole.

    Nothing of them is changed, and committed ones are left alone.

    Example: keepstep adopt runs/my-model --dry-run
    """
    from keepstep.cli.progress import Bar
    from keepstep.ops.adopt import Adopted, apply_adopt, check_free, plan_adopt

    plan = plan_adopt(folder)
    if dry_run:
        check_free(Path(plan.folder))
        done = Adopted(plan, (), {})
    else:
        with Bar("adopting") as bar:
            done = apply_adopt(plan, bar)
    if as_json:
        print_json(done, dry_run=dry_run)
    for one in () if as_json else plan.verdicts:
        name = f"checkpoint-{one.step}"
        if one.action == "leave":
            print(f"{name}: is keepstep's already")
        elif one.action == "refuse":
            print(f"{name}: not adopted")
            for problem in one.problems:
                print(f"  {printable(problem)}")
        elif one.step in done.failed:
            print(f"{name}: not adopted\n  {printable(done.failed[one.step])}")
        else:
            ranks = "1 rank" if one.world_size == 1 else f"{one.world_size} ranks"
            word = "would adopt" if dry_run else "adopted"
            print(f"{name}: {word}, {human_size(one.size)} of {ranks} ({', '.join(one.components)})")
    if plan.refused or done.failed:
        raise typer.Exit(1)
