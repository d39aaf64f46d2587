"""`keepstep diff`: what two checkpoints do not share."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from keepstep.cli.output import human_size, printable, table

if TYPE_CHECKING:
    from keepstep.ops.diff import Comparison, Different, Header
    from keepstep.plan.difference import Field, Kind

_WIDEST = 60
_FEW = 10


def command(
    a: Annotated[str, typer.Argument(help="A checkpoint's folder, a .safetensors file, or a folder of such files.")],
    b: Annotated[str, typer.Argument(help="The same, to compare with.")],
    values: Annotated[bool, typer.Option("--values", help="Say by how much numbers differ (reads them all).")] = False,
    top: Annotated[int, typer.Option("--top", min=1, help="Rows of each table of tensors.")] = _FEW,
    components: Annotated[
        str, typer.Option("--components", help="Compare only these parts of the state: model,optimizer,...")
    ] = "",
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 when they differ.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with everything.")] = False,
) -> None:
    """Compare two checkpoints, or a checkpoint and an export of its weights.

    Example: keepstep diff runs/checkpoints/stdlib-lm/save-350 runs/checkpoints/stdlib-lm/save-400 --values
    """
    from keepstep.cli.progress import Bar
    from keepstep.ops.diff import diff

    asked = [name for part in components.split(",") if (name := part.strip())]
    with Bar("comparing") as bar:
        found = diff(a, b, values=values, components=asked, watch=bar)
    if as_json:
        print(json.dumps(found.facts(), indent=1))
    else:
        _print(found, top)
    if exit_code and not found.same:
        raise typer.Exit(1)


def _print(found: "Comparison", top: int) -> None:
    print(_title("A", found.a))
    print(_title("B", found.b))
    _section("run record", ("FIELD", "A", "B"), [_field(one) for one in found.record], len(found.record))
    _section("configuration", ("KEY", "A", "B"), [_field(one) for one in found.config], len(found.config))
    header = ("PART", "EQUAL", "DIFFERENT", "ONLY IN A", "ONLY IN B", "OTHER DTYPE OR SHAPE")
    counts = [(t.component, t.equal, t.different, t.removed, t.added, t.changed) for t in found.tallies]
    _section("state", header, [tuple(map(_cell, row)) for row in counts], len(counts))
    columns = ("KEY", "DTYPE", "SHAPE", "SIZE")
    for text, kinds in (("only in A", found.removed), ("only in B", found.added)):
        _section(text, columns, [(_cell(k.key), *_form(k), human_size(k.size)) for k in kinds[:top]], len(kinds))
    changed = [(_cell(c.key), " ".join(_form(c.a)), " ".join(_form(c.b))) for c in found.changed[:top]]
    _section("other dtype or shape", ("KEY", "A", "B"), changed, len(found.changed))
    _print_different(found.different, top)
    print("\n" + _verdict(found))


def _print_different(different: "Sequence[Different]", top: int) -> None:
    if not any(one.values for one in different):
        rows = [(_cell(d.kind.key), *_form(d.kind), human_size(d.kind.size)) for d in different[:top]]
        _section("different, largest first", ("KEY", "DTYPE", "SHAPE", "SIZE"), rows, len(different))
        return
    measured = []
    for one in different[:top]:
        v = one.values
        if v is None:
            cells = ("-",) * 5
        else:
            share = f"{v.differing:,} of {v.elements:,}"
            bad = f"{v.nonfinite_a:,} / {v.nonfinite_b:,}" if v.nonfinite_a or v.nonfinite_b else "-"
            relative = "inf" if v.relative is None else f"{v.relative:.3g}"
            cells = (relative, _number(v.max_abs), _number(v.mean_abs), share, bad)
        measured.append((_cell(one.kind.key), *_form(one.kind), *cells))
    header = ("KEY", "DTYPE", "SHAPE", "RELATIVE", "MAX ABS", "MEAN ABS", "DIFFERING", "NOT FINITE A / B")
    _section("different, by ||a-b|| / ||a||", header, measured, len(different))


def _section(title: str, header: tuple[str, ...], rows: Sequence[tuple[str, ...]], count: int) -> None:
    if rows:
        more = f", {len(rows)} of {count}" if len(rows) < count else ""
        print(f"\n{title}{more}:\n{table(header, rows)}")


def _title(name: str, side: "Header") -> str:
    facts = [f"checkpoint of step {side.step}"] if side.form == "checkpoint" else ["export (safetensors)"]
    facts += [f"run {_cell(side.run)}"] if side.run is not None else []
    facts.append(human_size(side.size))
    facts += [f"written by {side.world_size} ranks"] if side.world_size is not None else []
    facts += [f"{side.left_out:,} keys left out: an export holds the model alone"] if side.left_out else []
    return f"{name}  {printable(side.path)}: {', '.join(facts)}"


def _verdict(found: "Comparison") -> str:
    if found.same:
        return "they are the same"
    if found.same_state:
        return "the state is the same, bit for bit; what identifies the run is not"
    unequal = len(found.different) + len(found.added) + len(found.removed) + len(found.changed)
    return f"{unequal:,} tensors or values differ"


def _field(one: "Field") -> tuple[str, str, str]:
    a, b = ("(missing)" if text is None else _cell(text) for text in (one.a, one.b))
    return _cell(one.field), a, b


def _form(kind: "Kind") -> tuple[str, str]:
    if not kind.dtype:
        return "(value)", "-"
    return _cell(kind.dtype), _cell("x".join(map(str, kind.shape)) or "scalar")


def _number(number: float | None) -> str:
    return "-" if number is None else f"{number:.3g}"


def _cell(value: object) -> str:
    """One line without control characters, cut to what a table can show."""
    text = str(value)
    shown = printable(text[: _WIDEST + 1])
    return shown if len(shown) <= _WIDEST else shown[: _WIDEST - 3] + "..."
