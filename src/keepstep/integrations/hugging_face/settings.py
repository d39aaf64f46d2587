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
        {name: value for name, value in group.items() if name != "params"}
        for group in getattr(optimizer, "param_groups", [])
    ]


def apply_options(optimizer: Any, scheduler: Any, wanted: Sequence[Mapping[str, Any]]) -> list[str]:
    """Give an optimizer that was just loaded the options that it was made with in this start.

    Where none differs nothing is touched, so a run that goes on as it was stays the same bit for bit.

    Returns:
        What has changed, in words.
    """
    groups = getattr(optimizer, "param_groups", [])
    if len(groups) != len(wanted):
        return []
    changes = []
    for number, (group, options) in enumerate(zip(groups, wanted, strict=True)):
        where = f" (parameter group {number})" if len(groups) > 1 else ""
        for name, value in options.items():
            if name not in _OF_SCHEDULE and name in group and _differs(group[name], value):
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
    bases = getattr(scheduler, "base_lrs", None)
    for number, (group, options) in enumerate(zip(groups, wanted, strict=True)):
        before, after = group.get("initial_lr"), options.get("initial_lr")
        if before is None or after is None or before == after:
            continue
        changes.append(f"learning_rate: {before} -> {after}" + (f" (parameter group {number})" if number else ""))
        group["initial_lr"] = after
        if isinstance(bases, list) and number < len(bases):
            bases[number] = after
        group["lr"] = group["lr"] * (after / before) if before else after
    lambdas = getattr(scheduler, "lr_lambdas", None)
    if changes and lambdas:
        # As the schedule itself works it out, and not by a ratio, which rounds.
        for group, base, rule in zip(groups, bases or [], lambdas, strict=False):
            group["lr"] = base * rule(scheduler.last_epoch)
        scheduler._last_lr = [group["lr"] for group in groups]
    return changes


def _differs(one: Any, other: Any) -> bool:
    try:
        return bool(one != other)
    except (RuntimeError, ValueError):  # tensors of several elements have no single answer
        return False
