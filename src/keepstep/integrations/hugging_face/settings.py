"""Present arguments win over those that a checkpoint was saved with: applied, and listed."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

logger = logging.getLogger("keepstep")

_OF_STATE = ("save_steps", "eval_steps", "logging_steps")
_OF_SCHEDULE = ("lr", "initial_lr", "params")


def options_of(optimizer: Any) -> list[dict[str, Any]]:
    """What an optimizer was made with, for each group of parameters: rates, decay, betas."""
    return [
        {name: value for name, value in group.items() if name != "params" and _is_option(value)}
        for group in getattr(optimizer, "param_groups", [])
    ]


def apply_options(
    optimizer: Any,
    scheduler: Any,
    wanted: Sequence[Mapping[str, Any]],
    made_then: Sequence[Mapping[str, Any]] | None,
) -> list[str]:
    """Give an optimizer that was just loaded the options that were changed by hand since.

    Optimizers keep state among their options too (a count of steps, say), and schedules and callbacks change them: only
    what an optimizer is made with now and was not made with then is meant.

    Args:
        optimizer, scheduler: as loaded.
        wanted: what they were made with in this start.
        made_then: what they were made with in the start that saved; None where that is not known.

    Returns:
        What has changed, in words.
    """
    groups = getattr(optimizer, "param_groups", [])
    if len(groups) != len(wanted):
        return []
    changes = []
    known = made_then if made_then is not None and len(made_then) == len(groups) else [{}] * len(groups)
    for number, (group, options) in enumerate(zip(groups, wanted, strict=True)):
        where = f" (parameter group {number})" if len(groups) > 1 else ""
        for name, value in options.items():
            then = known[number]
            if name not in _OF_SCHEDULE and name in group and name in then and _differs(then[name], value):
                changes.append(f"{name}: {group[name]} -> {value}{where}")
                group[name] = value
    return changes + _apply_rates(groups, scheduler, wanted)


def apply_steps(state: Any, args: Any) -> list[str]:
    """Let the present arguments say when to save, evaluate and log. Returns what has changed, in words."""
    before = {name: getattr(state, name) for name in _OF_STATE}
    state.compute_steps(args, state.max_steps)
    return [
        f"{name}: {before[name]} -> {getattr(state, name)}"
        for name in _OF_STATE
        if before[name] != getattr(state, name)
    ]


def _apply_rates(groups: Sequence[Any], scheduler: Any, wanted: Sequence[Mapping[str, Any]]) -> list[str]:
    """The rate that a schedule begins from is the present one; the schedule is where it was."""
    changes = []
    lambdas, bases = getattr(scheduler, "lr_lambdas", None), getattr(scheduler, "base_lrs", None)
    before = [group.get("lr") for group in groups]
    # Where a callback has set another rate, that one stays.
    follows = bool(lambdas) and before == getattr(scheduler, "_last_lr", None)
    for number, (group, options) in enumerate(zip(groups, wanted, strict=True)):
        saved, present = group.get("initial_lr"), options.get("initial_lr")
        if saved is None or present is None or saved == present:
            continue
        changes.append(f"learning_rate: {saved} -> {present}" + (f" (parameter group {number})" if number else ""))
        group["initial_lr"] = present
        if isinstance(bases, list) and number < len(bases):
            bases[number] = present
        group["lr"] = group["lr"] * (present / saved) if saved else present
    if lambdas and (changes or follows):
        # As the schedule itself works it out, and not by a ratio, which rounds. With another end than it had when the
        # checkpoint was saved (max_steps), it is another one already for the next step.
        for group, base, rule in zip(groups, bases or [], lambdas, strict=False):
            group["lr"] = base * rule(scheduler.last_epoch)
        scheduler._last_lr = [group["lr"] for group in groups]
        if not changes and before != scheduler._last_lr:
            changes.append(f"rate of the next step: {before[0]} -> {scheduler._last_lr[0]} (of the present schedule)")
    return changes


def _is_option(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(map(_is_option, value))
    return value is None or type(value) in (bool, int, float, str)


def _differs(one: Any, other: Any) -> bool:
    try:
        return bool(one != other)
    except (RuntimeError, ValueError):  # tensors of several elements have no single answer
        return False
