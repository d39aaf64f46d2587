"""`keepstep show`: what one checkpoint is and holds."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keepstep.cli.output import human_size, print_json, table

if TYPE_CHECKING:
    from keepstep.ops.show import Shown

_RECORD_FIELDS = ("run", "created_at", "parent_step", "seed", "global_batch_size", "git_commit", "torch", "keepstep")


def command(
    checkpoint: Annotated[Path, typer.Argument(help="A save-<step> folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show one checkpoint.

    Example: keepstep show runs/checkpoints/stdlib-lm/save-400
    """
    from keepstep.ops.show import show as describe

    shown = describe(checkpoint)
    if as_json:
        print_json(shown)
        return
    _print(shown)


def _print(shown: "Shown") -> None:
    print(f"{shown.path}: {shown.condition}" + (f" ({shown.problem})" if shown.problem else ""))
    print(f"step {shown.step}, {human_size(shown.size)}, written by {shown.world_size or '?'} ranks")
    for name in _RECORD_FIELDS:
        if shown.record.get(name) is not None:
            print(f"{name}: {shown.record[name]}")
    print()
    print(table(("PART", "ENTRIES", "SIZE"), [(p.component, str(p.entries), human_size(p.size)) for p in shown.parts]))
    print(f"\nmodel: {shown.parameters:,} numbers; largest tensors:")
    rows = [(t.key, t.dtype, "x".join(map(str, t.shape)) or "scalar", human_size(t.size)) for t in shown.largest]
    print(table(("KEY", "DTYPE", "SHAPE", "SIZE"), rows))
