"""Which checkpoints stay after a save."""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """What becomes of one checkpoint, and why."""

    step: int
    keep: bool
    reason: str


def plan_retention(
    committed: Collection[int],
    num_to_keep: int | None,
    protected: Collection[int] = (),
    held: Collection[int] = (),
) -> tuple[Verdict, ...]:
    """Keep the `num_to_keep` checkpoints with the highest steps; None keeps all.

    Args:
        committed: steps of all committed, complete checkpoints. Nothing else is ever counted or deleted.
        num_to_keep: how many remain, at least 1.
        protected: steps that stay in any case (the one just written); they count.
        held: steps that are pinned or that a reader holds: they stay until that ends, and do not count.

    Returns:
        A verdict for each checkpoint, oldest first.
    """
    if num_to_keep is not None and num_to_keep < 1:
        raise ValueError(f"num_to_keep must be 1 or more, not {num_to_keep}")
    newest_first = sorted(committed, reverse=True)
    waiting = set(held) - set(protected)
    if num_to_keep is None:
        return tuple(Verdict(step, True, "all are kept") for step in reversed(newest_first))
    fixed = set(protected) & set(newest_first)
    room = max(0, num_to_keep - len(fixed))
    newest = [step for step in newest_first if step not in fixed | waiting][:room]
    verdicts = []
    for step in reversed(newest_first):
        if step in fixed:
            verdicts.append(Verdict(step, True, "protected"))
        elif step in waiting:
            verdicts.append(Verdict(step, True, "pinned, or held by a reader"))
        elif step in newest:
            verdicts.append(Verdict(step, True, f"among the {num_to_keep} newest"))
        else:
            verdicts.append(Verdict(step, False, f"older than the {num_to_keep} to keep"))
    return tuple(verdicts)
