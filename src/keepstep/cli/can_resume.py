"""`keepstep can-resume`: what a start of a job would do."""

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from keepstep.cli.asked import Accept, From, Rehash, asked_for
from keepstep.cli.output import print_json
from keepstep.cli.train import JobFile, Nproc, Overrides
from keepstep.errors import KeepstepError

if TYPE_CHECKING:
    from keepstep.job.can_resume import Outlook


def command(
    job: JobFile,
    nproc: Nproc = 1,
    overrides: Overrides = None,
    go_back: From = None,
    accept: Accept = None,
    rehash: Rehash = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say from where a job would go on, and what differs from the checkpoint; change nothing.

    Exits with the code that the start itself would end with: 3 when it is refused, 0 when it would run.

    Example: keepstep can-resume examples/stdlib_lm/train.yaml --set trainer.total_steps=600
    """
    sys.dont_write_bytecode = True  # not even beside the providers
    from keepstep.cli.logs import set_up_logging
    from keepstep.config.load import load_job
    from keepstep.job.can_resume import Outlook, can_resume
    from keepstep.job.providers import make_importable

    set_up_logging()
    try:
        asked = asked_for(go_back=go_back, accept=accept, rehash=rehash)
        config = load_job(job, overrides or [])
        make_importable(job)
        found = can_resume(config, int(os.environ.get("WORLD_SIZE", nproc)), asked)
    except KeepstepError as error:
        if not as_json:
            raise
        found = Outlook("failed", error.exit_code, "", problem=str(error))
    if as_json:
        print_json(found)
    else:
        _print(found)
    raise typer.Exit(found.exit_code)


def _print(found: "Outlook") -> None:
    from keepstep.plan.guard_text import table
    from keepstep.plan.outlook import plot

    match found.outcome:
        case "fresh":
            print(f"a fresh start: {found.reason} ({found.folder})")
        case "complete":
            print(f"nothing to do: step {found.step} is the last, and it is saved ({found.checkpoint})")
        case "resume" | "in use":
            print(f"resumes from step {found.step} ({found.checkpoint}): {found.reason}")
    for note in found.notes:
        print(f"note: {note}")
    if found.problem:
        print(f"keepstep: {found.problem}", file=sys.stderr)
    if found.findings and found.outcome != "refused":
        print(f"\nwhat differs from the checkpoint:\n{table(found.findings)}")
    if found.outcome not in ("resume", "fresh", "refused", "in use"):
        return
    if found.data is not None:
        data = found.data
        print(
            f"\nepoch {data.epoch + 1}, sample {data.sample_in_epoch:,} of {data.length:,} "
            f"({data.samples:,} samples done in all)"
        )
        before = data.steps_per_epoch_before
        changed = f" (was {before})" if before not in (None, data.steps_per_epoch_now) else ""
        print(f"{data.steps_per_epoch_now} steps for each epoch{changed}")
    if found.remaining_steps is not None:
        print(f"{found.remaining_steps} steps remain")
    rate = found.rate
    if rate is not None and (now := rate.now[0]) is not None:
        was = rate.before[0]
        text = (
            "the same as it was" if not rate.is_changed else f"was {was:.6g}" if was is not None else "was at its end"
        )
        print(f"learning rate of step {rate.steps[0]}: {now:.6g}, {text}")
        if rate.is_changed:
            print(plot(rate))
