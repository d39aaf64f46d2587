"""Which checkpoints stay after a save: policies that each say what they keep, and what comes of all of them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from keepstep.plan.scores import Measured

PROTECTED, HELD = "protected", "pinned, or held by a reader"


@dataclass(frozen=True)
class Verdict:
    """What becomes of one checkpoint, and why.

    Attributes:
        size: bytes, where it was told.
        apart: it stays only as long as somebody reads it or copies it: it goes by itself then, and a disk budget does
            not count it.
    """

    step: int
    keep: bool
    reason: str
    size: int = 0
    apart: bool = False


@dataclass(frozen=True)
class Candidate:
    """A committed, complete checkpoint, as policies see it.

    Attributes:
        size: bytes.
        created: when it was made, in seconds since the epoch by the clock of the machine that did; None: not known.
        measured: its scores; None: it has none yet, or nobody looked.
    """

    step: int
    size: int = 0
    created: float | None = None
    measured: Measured | None = None


@dataclass(frozen=True)
class Scene:
    """All that policies judge by.

    Attributes:
        candidates: oldest first.
        protected: steps that stay in any case; they count.
        held: steps that stay as long as they are pinned or read; they do not count.
        now: seconds since the epoch.
        scores_known: False where scores are there, or were, and not all could be read.
    """

    candidates: tuple[Candidate, ...]
    protected: frozenset[int] = frozenset()
    held: frozenset[int] = frozenset()
    now: float = 0.0
    scores_known: bool = True


@dataclass(frozen=True)
class Claim:
    """What one policy says of one checkpoint.

    Attributes:
        keep: whether it is to stay; nothing goes that any policy keeps.
        reason: why, or why not.
        worth: what a disk budget gives up first has the lowest; the kind of policy, then the place within that.
        firm: no budget takes it.
    """

    keep: bool
    reason: str
    worth: tuple[int, int] = (0, 0)
    firm: bool = False


class Policy(Protocol):
    """Says what it would keep. One that has nothing to say of a checkpoint leaves it out."""

    def judge(self, scene: Scene) -> Mapping[int, Claim]:
        """A claim for each step that the policy has one for."""


# Kinds of policies by what they are worth to a disk budget. The best cannot be made again; the newest are what a run
# goes on from; the archive is what grows for ever; the young are old soon.
ALL_WORTH, YOUNG_WORTH, ARCHIVE_WORTH, NEWEST_WORTH, BEST_WORTH = range(5)


@dataclass(frozen=True)
class All:
    """Everything stays, as far as a budget lets it."""

    def judge(self, scene: Scene) -> Mapping[int, Claim]:
        return {one.step: Claim(True, "all are kept", (ALL_WORTH, 0)) for one in scene.candidates}


@dataclass(frozen=True)
class Newest:
    """The checkpoints with the highest steps stay. `number`: so many, the protected among them; at least 1."""

    number: int

    def __post_init__(self) -> None:
        if self.number < 1:
            raise ValueError(f"num_to_keep must be 1 or more, not {self.number}")

    def judge(self, scene: Scene) -> Mapping[int, Claim]:
        steps = [one.step for one in scene.candidates]
        room = max(0, self.number - len(scene.protected & set(steps)))
        free = [step for step in reversed(steps) if step not in scene.protected | scene.held]
        kept, old = f"among the {self.number} newest", f"older than the {self.number} to keep"
        worth = (NEWEST_WORTH, 0)
        return {step: Claim(n < room, kept if n < room else old, worth) for n, step in enumerate(free)}


def retain(
    candidates: Collection[Candidate],
    policies: Sequence[Policy],
    *,
    protected: Collection[int] = (),
    held: Collection[int] = (),
    passing: Collection[int] = (),
    newest: int | None = None,
    now: float = 0.0,
    scores_known: bool = True,
    budget_bytes: int | None = None,
) -> tuple[Verdict, ...]:
    """Keep what any policy keeps, then give up what the budget does not allow.

    Args:
        candidates: all committed, complete checkpoints. Nothing else is ever counted or deleted.
        policies: in any order; at least one.
        protected: steps that stay in any case (the one just written); they count.
        held: steps that are pinned or that a reader holds: they stay until that ends, and do not count.
        passing: those of them that nobody has pinned. The budget is held without them, as it will be when they are let
            go, so they push nothing out.
        newest: the step that no rule and no budget takes; None: the highest.
        now: seconds since the epoch, for policies that judge by age.
        scores_known: False where scores are there, or were, and not all could be read.
        budget_bytes: the most that all of what stays may take together.

    Returns:
        A verdict for each candidate, oldest first.
    """
    ordered = tuple(sorted(candidates, key=lambda one: one.step))
    if not ordered:
        return ()
    steps = frozenset(one.step for one in ordered)
    fixed = steps & frozenset(protected)
    scene = Scene(ordered, fixed, steps & frozenset(held) - fixed, now, scores_known)
    opinions = [policy.judge(scene) for policy in policies]
    claims = {step: [one[step] for one in opinions if step in one] for step in steps}
    last = newest if newest in steps else ordered[-1].step
    untouchable = fixed | scene.held | {last}
    apart = scene.held & frozenset(passing) - {last}
    verdicts = [_verdict(one, scene, claims[one.step], is_fixed=one.step in untouchable) for one in ordered]
    return tuple(_within(budget_bytes, verdicts, claims, untouchable - apart, apart))


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
    if num_to_keep is None:
        return tuple(Verdict(step, True, "all are kept") for step in sorted(committed))
    newest = max(set(protected) & set(committed), default=None)
    candidates = [Candidate(step) for step in set(committed)]
    return retain(candidates, (Newest(num_to_keep),), protected=protected, held=held, newest=newest)


def _verdict(candidate: Candidate, scene: Scene, claims: Sequence[Claim], *, is_fixed: bool) -> Verdict:
    step = candidate.step
    reasons = [claim.reason for claim in claims if claim.keep]
    if step in scene.protected:
        reasons.insert(0, PROTECTED)
    elif step in scene.held:
        reasons.insert(0, HELD)
    elif is_fixed and not reasons:
        reasons.append("the newest")
    if reasons:
        return Verdict(step, True, "; ".join(_sorted(reasons)), candidate.size)
    told = _sorted([claim.reason for claim in claims])
    return Verdict(step, False, "; ".join(told) or "no rule keeps it", candidate.size)


def _sorted(reasons: Sequence[str]) -> list[str]:
    """Each once, in an order that does not hang on that of the policies; what holds in any case first."""
    return sorted(set(reasons), key=lambda reason: (reason not in (PROTECTED, HELD), reason))


def _within(
    budget_bytes: int | None,
    verdicts: Sequence[Verdict],
    claims: Mapping[int, Sequence[Claim]],
    untouchable: Collection[int],
    apart: Collection[int],
) -> list[Verdict]:
    """Give up what is worth least, and of that the oldest, until the rest fits. Of that, what is `apart` stays."""
    if budget_bytes is None:
        return list(verdicts)
    kept = {step: [claim for claim in found if claim.keep] for step, found in claims.items()}
    beyond = {one.step: one for one in verdicts if one.step in apart and not kept[one.step]}
    total = sum(one.size for one in verdicts if one.keep and one.step not in beyond)
    loose = [one for one in verdicts if one.keep and one.step not in untouchable and one.step not in beyond]
    loose = [one for one in loose if not any(claim.firm for claim in kept[one.step])]
    for one in sorted(loose, key=lambda one: (max(claim.worth for claim in kept[one.step]), one.step)):
        if total <= budget_bytes:
            break
        beyond[one.step] = one
        total -= one.size
    return [_given_up(one, budget_bytes, apart) if one.step in beyond else one for one in verdicts]


def _given_up(verdict: Verdict, budget_bytes: int, apart: Collection[int]) -> Verdict:
    budget = f"the disk budget of {budget_bytes / 1e9:g} GB"
    if verdict.step in apart:
        return replace(verdict, reason=f"{verdict.reason} (beside {budget}, until then)", apart=True)
    return replace(verdict, keep=False, reason=f"beyond {budget} (else: {verdict.reason})")
