"""`keepstep advise`: how often should this run save?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keepstep.cli.output import print_json
from keepstep.errors import ConfigError

if TYPE_CHECKING:
    from keepstep.ops.advise import AdviceReport
    from keepstep.plan.advice import Loss


def command(
    folder: Annotated[Path, typer.Argument(help="A run's folder.")],
    mtbf: Annotated[
        str | None, typer.Option("--mtbf", help="Mean time between failures, such as 6h; by default as observed.")
    ] = None,
    max_loss_minutes: Annotated[
        float | None,
        typer.Option("--max-loss-minutes", help="A crash is to cost so much at most; by default as configured, or 15."),
    ] = None,
    step_seconds: Annotated[
        float | None, typer.Option("--step-seconds", help="Of one step; by default as measured.")
    ] = None,
    save_seconds: Annotated[
        float | None, typer.Option("--save-seconds", help="What the job loses by a save; by default as measured.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say how often a run should save, from what its steps, saves and failures have cost, and what a day loses.

    Example: keepstep advise runs/checkpoints/stdlib-lm --mtbf 6h
    """
    from keepstep.config.checkpointing import MOST_MINUTES
    from keepstep.ops.advise import Given, advise_run
    from keepstep.plan.durations import DurationError, parse_duration

    _check("--max-loss-minutes", max_loss_minutes, _SHORTEST, MOST_MINUTES)
    _check("--step-seconds", step_seconds, _SHORTEST, _LONGEST)
    _check("--save-seconds", save_seconds, 0.0, _LONGEST)
    try:
        seconds = None if mtbf is None else parse_duration(mtbf)
    except DurationError as error:
        raise ConfigError(f"--mtbf: {error}") from None
    _check("--mtbf", seconds, _SHORTEST, _LONGEST_BETWEEN_FAILURES)
    report = advise_run(folder, Given(seconds, step_seconds, save_seconds, max_loss_minutes))
    if as_json:
        print_json(report)
    else:
        _print(report)


# Seconds that nobody means; what is told of a run's steps and saves has the same bounds.
_SHORTEST, _LONGEST, _LONGEST_BETWEEN_FAILURES = 1e-9, 365 * 86_400.0, 1e12


def _check(option: str, value: float | None, least: float, most: float) -> None:
    if value is None or least <= value <= most:
        return
    if value <= 0 or value != value:
        raise ConfigError(f"{option} {value:g}: must be {'more than 0' if least else '0 or more'}")
    raise ConfigError(f"{option} {value:g}: must be {least:g} to {most:g}")


def _print(report: "AdviceReport") -> None:
    from keepstep.plan.durations import spoken

    costs, failures = report.costs, report.failures
    print(f"a step        {spoken(costs.step_seconds)}")
    late = costs.commit_delay_seconds
    print(f"a save        {spoken(costs.save_seconds)} lost" + (f", committed {spoken(late)} later" if late else ""))
    if failures.restart_seconds is not None:
        print(f"a restart     {spoken(failures.restart_seconds)} until the end of its first step")
    attempts = "1 attempt" if failures.attempts == 1 else f"{failures.attempts} attempts"
    seen = f"{failures.failures} in {spoken(failures.running_seconds)} of {attempts}"
    if report.is_mtbf_given:
        seen = f"one every {spoken(costs.mtbf_seconds or 0.0)}, as given (seen: {seen})"
    print(f"failures      {seen}")
    if report.present_steps is not None and report.present_loss is not None:
        print(_line("at present", report.present_steps, costs.step_seconds, report.present_loss))
    print(_line("advised", report.advice.period_steps, costs.step_seconds, report.advice.loss))
    for reason in report.advice.reasons:
        print(f"  {reason}")
    if costs.mtbf_seconds is None:
        print("  what crashes cost is left out: none was seen; --mtbf 6h says how often they come")


def _line(name: str, steps: int, step_seconds: float, loss: "Loss") -> str:
    from keepstep.plan.durations import spoken

    parts = [f"saves {spoken(loss.saves)}"]
    if loss.recomputed or loss.restarts:
        parts += [f"work done again {spoken(loss.recomputed)}", f"restarts {spoken(loss.restarts)}"]
    every = f"every {steps} steps ({spoken(steps * step_seconds)})" if steps > 1 else "every step"
    share = loss.total / 864
    percent = f"{share:.0f}" if share >= 10 else f"{share:.2g}"
    return f"{name:13} {every}: a day loses {spoken(loss.total)}, {percent} % ({', '.join(parts)})"
