"""Policies that keep checkpoints beside the newest, and how a configuration names them."""

from collections.abc import Mapping
from dataclasses import dataclass

from keepstep.config.bounds import Guard, parse_guard
from keepstep.config.retention import Keep
from keepstep.plan.choice import failed_guard
from keepstep.plan.metrics import Mode, best_first, obstacle, shown
from keepstep.plan.retention import ARCHIVE_WORTH, BEST_WORTH, YOUNG_WORTH, All, Claim, Newest, Policy, Scene


@dataclass(frozen=True)
class EverySteps:
    """The first checkpoint at or after each multiple of `steps` stays for ever; the multiple itself where it is saved.

    Of what comes after it and before the next multiple nothing stays by this, so the choice never changes again.
    """

    steps: int

    def judge(self, scene: Scene) -> Mapping[int, Claim]:
        claims, last = {}, 0
        for one in scene.candidates:
            multiple = one.step // self.steps
            if multiple > last:
                last = multiple
                reason = f"kept for ever: the first at or after step {multiple * self.steps}"
                claims[one.step] = Claim(True, reason, (ARCHIVE_WORTH, 0))
            else:
                claims[one.step] = Claim(False, f"not the first of {self.steps} steps")
        return claims


@dataclass(frozen=True)
class Best:
    """The best by a score stay. What has no score, or one that cannot be compared, is never among them.

    Where not all scores can be read, what has no number may be the best, and stays; no budget takes the best then.

    Attributes:
        metric: by its full name.
        number: so many stay.
        guards: bounds that a checkpoint must keep to be among them.
    """

    metric: str
    mode: Mode
    number: int = 1
    guards: tuple[Guard, ...] = ()

    def judge(self, scene: Scene) -> Mapping[int, Claim]:
        obstacles = {
            one.step: obstacle(one.measured, self.metric) or failed_guard(self.guards, one.measured)
            for one in scene.candidates
        }
        values = {
            one.step: one.measured.metrics[self.metric]
            for one in scene.candidates
            if one.measured is not None and not obstacles[one.step]
        }
        claims = {step: Claim(False, why) for step, why in obstacles.items() if why}
        if not scene.scores_known:
            why = f"not all scores can be read, and it may be the best by {self.metric}"
            claims = {step: Claim(True, why, (BEST_WORTH, 0), firm=True) for step in claims}
        for place, step in enumerate(best_first(values, self.mode), 1):
            told = f"{self.metric} = {shown(values[step])}"
            if place <= self.number:
                reason = (
                    f"the best, {told}" if self.number == 1 else f"number {place} of the {self.number} best, {told}"
                )
                claims[step] = Claim(True, reason, (BEST_WORTH, -place), firm=not scene.scores_known)
            else:
                claims[step] = Claim(False, f"number {place} by {told}")
        return claims


@dataclass(frozen=True)
class YoungerThan:
    """What was made less than `seconds` ago stays. One from the future is young: a clock went back."""

    seconds: float

    def judge(self, scene: Scene) -> Mapping[int, Claim]:
        hours = f"{self.seconds / 3600:g} hours"
        claims = {}
        for one in scene.candidates:
            if one.created is None:
                claims[one.step] = Claim(True, "nobody knows when it was made", (YOUNG_WORTH, 0))
            elif scene.now - one.created < self.seconds:
                claims[one.step] = Claim(True, f"younger than {hours}", (YOUNG_WORTH, 0))
            else:
                claims[one.step] = Claim(False, f"{hours} old or older")
        return claims


@dataclass(frozen=True)
class Rules:
    """What holds beside the number of newest ones that stay.

    Attributes:
        policies: each keeps what it says.
        budget_bytes: the most that all of what stays may take; None: no bound.
    """

    policies: tuple[Policy, ...] = ()
    budget_bytes: int | None = None

    @property
    def metrics(self) -> tuple[str, ...]:
        """What must be known of checkpoints to find the best."""
        return tuple(policy.metric for policy in self.policies if isinstance(policy, Best))

    @property
    def needs_scores(self) -> bool:
        return bool(self.metrics)

    @property
    def needs_ages(self) -> bool:
        return any(isinstance(policy, YoungerThan) for policy in self.policies)

    def beside(self, num_to_keep: int | None) -> tuple[Policy, ...]:
        """All policies. `num_to_keep`: so many of the newest stay; None: all, as far as the budget lets them."""
        return (All() if num_to_keep is None else Newest(num_to_keep), *self.policies)

    def may_delete(self, num_to_keep: int | None) -> bool:
        """Whether anything is ever given up."""
        return num_to_keep is not None or self.budget_bytes is not None


NO_RULES = Rules()


def rules_of(keep: Keep | None) -> Rules:
    """What a configuration asks for."""
    if keep is None:
        return NO_RULES
    policies: list[Policy] = [
        Best(one.metric, one.mode, one.number, tuple(map(parse_guard, one.guards))) for one in keep.best
    ]
    if keep.every_steps is not None:
        policies.append(EverySteps(keep.every_steps))
    if keep.younger_than_hours is not None:
        policies.append(YoungerThan(keep.younger_than_hours * 3600))
    budget = keep.disk_budget_gb
    return Rules(tuple(policies), None if budget is None else round(budget * 1e9))
