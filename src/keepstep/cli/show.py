"""`keepstep show`: what one checkpoint is and holds."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keepstep.cli.output import human_size, print_json, printable, table
from keepstep.cli.places import place_of
from keepstep.plan.guard_text import brief

if TYPE_CHECKING:
    from keepstep.ops.show import Shown
    from keepstep.ops.trainer_state import TrainerFacts

_IDENTITY = (
    "run",
    "base_model",
    "base_revision",
    "base_weights",
    "dataset_sha256",
    "tokenizer_sha256",
    "config_sha256",
    "seed",
    "global_batch_size",
    "git_commit",
)
_WRITER = ("created_at", "host", "gpu", "cpu", "threads", "python", "torch", "transformers", "trl", "keepstep")
_SHOWN_PARENTS = 5


def command(
    checkpoint: Annotated[str, typer.Argument(help="A save-<step> or checkpoint-<step> folder, or its address.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show one checkpoint.

    Example: keepstep show runs/checkpoints/stdlib-lm/save-400
    """
    shown = _look(checkpoint)
    if as_json:
        print_json(shown)
        return
    _print(shown)


def _look(text: str) -> "Shown":
    place = place_of(text)
    if isinstance(place, Path):
        from keepstep.ops.show import show as look

        return look(place)
    from keepstep.ops.mirror.showing import show_stored

    return show_stored(place)


def _print(shown: "Shown") -> None:
    record = shown.record
    print(f"{shown.path}: {shown.condition}" + (f" ({shown.problem})" if shown.problem else ""))
    print(f"step {shown.step}, {human_size(shown.size)}, attempt {shown.attempt or '?'}")
    _print_fields(record, _IDENTITY)
    if record.get("git_diff_sha256"):
        print("git: with changes that are not committed")
    print(f"\nwritten by {shown.world_size or '?'} ranks on {printable(record.get('hosts') or '?')} hosts")
    _print_fields(record, _WRITER)
    parents = shown.parents[:_SHOWN_PARENTS]
    more = f" and {len(shown.parents) - len(parents)} before" if len(shown.parents) > len(parents) else ""
    print(f"parents: {', '.join(map(printable, parents)) + more if parents else 'none: the run began here'}")
    if shown.trainer is not None:
        _print_trainer(shown.trainer)
    for one in record.get("accepted") or ():
        if isinstance(one, dict):
            print(f"went on although {printable(one.get('field'))} was {brief(str(one.get('saved')))}", end="")
            print(f" and is {brief(str(one.get('now')))} ({printable(one.get('policy'))})")
    print()
    print(table(("PART", "ENTRIES", "SIZE"), [(p.component, str(p.entries), human_size(p.size)) for p in shown.parts]))
    print()
    print(table(("DTYPE", "TENSORS"), [(printable(name), str(count)) for name, count in sorted(shown.dtypes.items())]))
    print(f"\nmodel: {shown.parameters:,} numbers; largest tensors:")
    rows = [
        (printable(t.key), printable(t.dtype), "x".join(map(str, t.shape)) or "scalar", human_size(t.size))
        for t in shown.largest
    ]
    print(table(("KEY", "DTYPE", "SHAPE", "SIZE"), rows))


def _print_trainer(facts: "TrainerFacts") -> None:
    """What a Trainer's own files tell."""
    epoch = "epoch ?" if facts.epoch is None else f"epoch {facts.epoch:.6g}"
    print(f"trainer: {epoch}" + (f", of {facts.max_steps} steps" if facts.max_steps else ""))
    if facts.best_checkpoint is not None or facts.best_metric is not None:
        metric = "" if facts.best_metric is None else f" with {facts.best_metric:.6g}"
        print(f"best so far: {printable(facts.best_checkpoint or '?')}{metric}")
    print(f"weights: {facts.weights}" + (f" of {printable(facts.base_model)}" if facts.base_model else ""))
    ranks = "" if facts.rng_ranks == 1 else f" of {facts.rng_ranks} ranks"
    held = {
        "optimizer": facts.optimizer,
        "scheduler": facts.scheduler,
        "scaler": facts.scaler,
        f"random states{ranks}": facts.rng_ranks > 0,
    }
    absent = [name for name, is_there in held.items() if not is_there and name != "scaler"]
    print(f"holds {', '.join(name for name, is_there in held.items() if is_there) or 'nothing else'}", end="")
    print(f"; lacks {', '.join(absent)}" if absent else "")


def _print_fields(record: dict[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        if record.get(name) is not None:
            print(f"{name}: {printable(record[name])}")
