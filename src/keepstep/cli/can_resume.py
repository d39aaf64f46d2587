"""`keepstep can-resume`: what a start of a job would do."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keepstep.cli.asked import Accept, From, Rehash, asked_for
from keepstep.cli.output import human_size, print_json, printable
from keepstep.cli.train import Nproc, Overrides
from keepstep.errors import ConfigError, KeepstepError

if TYPE_CHECKING:
    from keepstep.job.can_resume import Outlook
    from keepstep.ops.resumable import FolderOutlook

_FACTS = (
    "run",
    "base_model",
    "base_weights",
    "dataset_sha256",
    "tokenizer_sha256",
    "seed",
    "git_commit",
    "transformers",
)


def command(
    job: Annotated[
        Path, typer.Argument(metavar="JOB.yaml|FOLDER", help="The job's configuration, or the folder of a run.")
    ],
    nproc: Nproc = 1,
    overrides: Overrides = None,
    go_back: From = None,
    accept: Accept = None,
    rehash: Rehash = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say from where a job would go on, and what differs from the checkpoint; change nothing.

    Exits with the code that the start itself would end with: 3 when it is refused, 0 when it would run.

    Of a folder, such as a Trainer's, it says which checkpoint a start would take, after reading every byte of it.

    Example: keepstep can-resume examples/stdlib_lm/train.yaml --set trainer.total_steps=600
    """
    if job.is_dir():
        if nproc != 1 or overrides or go_back or accept or rehash:
            raise ConfigError(f"{job} is a folder: --nproc, --set, --from, --accept and --rehash belong to a JOB.yaml")
        _of_a_folder(job, as_json=as_json)
        return
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


def _of_a_folder(folder: Path, *, as_json: bool) -> None:
    from keepstep.cli.progress import Bar
    from keepstep.ops.resumable import FolderOutlook, look_ahead

    try:
        with Bar("verifying") as bar:
            found = look_ahead(folder, bar)
    except KeepstepError as error:
        if not as_json:
            raise
        found = FolderOutlook("failed", error.exit_code, str(folder), problem=str(error))
    if as_json:
        print_json(found)
    else:
        _print_folder(found)
    raise typer.Exit(found.exit_code)


def _print_folder(found: "FolderOutlook") -> None:
    if found.outcome == "fresh":
        print(f"a fresh start: {found.reason} ({found.folder})")
    elif found.checkpoint is not None:
        print(f"resumes from step {found.step} ({found.checkpoint}): {found.reason}")
        if found.verified:
            print(f"{human_size(found.verified)} read, every byte as it was written")
            ranks = "1 rank" if found.world_size == 1 else f"{found.world_size} ranks"
            print(f"written by {ranks}, {printable(found.record.get('created_at') or 'nobody knows when')}")
        if found.record.get("adopted") is True:
            print("adopted: keepstep has not seen it being saved, and knows little of the run")
        for name in _FACTS:
            if found.record.get(name) is not None:
                print(f"{name}: {printable(found.record[name])}")
        if (facts := found.trainer) is not None:
            left = "" if not facts.max_steps else f", {max(0, facts.max_steps - found.step)} steps remain"
            print(f"epoch {'?' if facts.epoch is None else f'{facts.epoch:.6g}'}{left}")
    for note in found.notes:
        print(f"note: {note}")
    if found.problem:
        print(f"keepstep: {found.problem}", file=sys.stderr)


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
