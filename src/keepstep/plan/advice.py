"""How often to save, and what a setting costs.

Crashes come independently of each other, at a constant rate, once in `mtbf_seconds` (M) on average. A job works for t
seconds, loses d to a save, works again. A crash throws away what was done since the last commit, and the job needs R
until it works again; it may crash in that time too. The time that a unit of work then takes on average is

    T(t) = M * exp(R / M) * (exp((t + d) / M) - 1) / t

(J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer
Systems 22 (3), 2006: his complete cost function). It is smallest where exp(-(t + d) / M) = 1 - t / M, whatever R is.
The search for that begins at Daly's higher order estimate, whose first term is J. W. Young's sqrt(2 * d * M) ("A first
order approximation to the optimum checkpoint interval", Communications of the ACM 17 (9), 1974).

Where a checkpoint is written beside the job, it exists only some time W after the state was copied. A crash costs that
time too, however often the job saves, so it counts as a part of R. A save that comes due before that waits for the rest
of it: with t < W a save costs d + W - t, and a crash t in place of W. T then falls until t = W: no shorter period is
better, unless failures come more often than checkpoints are written.
"""

import math
from dataclasses import dataclass

from keepstep.config.checkpointing import DEFAULT_MAX_LOSS_MINUTES
from keepstep.plan.durations import spoken

DAY_SECONDS = 86_400.0


@dataclass(frozen=True)
class Costs:
    """What was measured of a job, in seconds.

    Attributes:
        step_seconds: one step, saves left out.
        save_seconds: what the job loses by a save: all of it where it waits, else the copying and what the writing
            beside it slows it down. What it waits for the save before is left out.
        commit_delay_seconds: from then until the checkpoint exists; 0 where the job waits for that.
        restart_seconds: from a crash to the end of the first step of the next attempt.
        mtbf_seconds: mean time between failures; None when it is not known.
    """

    step_seconds: float
    save_seconds: float
    commit_delay_seconds: float = 0.0
    restart_seconds: float = 0.0
    mtbf_seconds: float | None = None


@dataclass(frozen=True)
class Loss:
    """What a day of 86,400 seconds is expected to lose, in seconds.

    Attributes:
        total: all of it.
        saves: in saves that a later resume may need.
        recomputed: work that a crash throws away and that is done again; 0 when no failure rate is known.
        restarts: until a job works again; 0 when no failure rate is known.
    """

    total: float
    saves: float
    recomputed: float
    restarts: float


@dataclass(frozen=True)
class Advice:
    """A period and why.

    Attributes:
        period_steps: save every that many steps.
        reasons: sentences.
        loss: expected with it.
        optimum_steps: the period with the smallest expected loss; None when no failure rate is known.
        is_bounded: whether the bound on what a crash may cost makes the period smaller than that.
    """

    period_steps: int
    reasons: tuple[str, ...]
    loss: Loss
    optimum_steps: int | None
    is_bounded: bool


def daly_estimate(save_seconds: float, mtbf_seconds: float) -> float:
    """Seconds of work between two saves by Daly's higher order estimate; off where saves take as long as failures."""
    if save_seconds >= 2 * mtbf_seconds:
        return mtbf_seconds
    ratio = save_seconds / (2 * mtbf_seconds)
    first_order = math.sqrt(2 * save_seconds * mtbf_seconds)
    return max(0.0, first_order * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_seconds)


def optimum_seconds(save_seconds: float, mtbf_seconds: float) -> float:
    """Seconds of work between two saves at which the expected loss is smallest; between 0 and `mtbf_seconds`.

    Newton's method on h(x) = x + exp(-(x + d)) - 1, all in units of the MTBF. h is convex and exp(-d) - 1 at 0, so from
    the second point on it comes down to the root from above.
    """
    delay = save_seconds / mtbf_seconds
    x = min(1.0, max(daly_estimate(save_seconds, mtbf_seconds) / mtbf_seconds, 1e-12))
    for _ in range(100):
        slope = -math.expm1(-(x + delay))
        if slope <= 0:
            break
        nearer = min(1.0, max(0.0, x - (x + math.expm1(-(x + delay))) / slope))
        if abs(nearer - x) <= 1e-12 * x:
            return nearer * mtbf_seconds
        x = nearer
    return x * mtbf_seconds


def optimum_steps(costs: Costs) -> int | None:
    """The number of steps between two saves with the smallest expected loss; None when no failure rate is known.

    T has one minimum, so one of the two whole numbers beside it is the best. Where that is the time of a write, fewer
    steps may be: the job then waits less than one of them takes.
    """
    mtbf = costs.mtbf_seconds
    if mtbf is None:
        return None
    seconds = max(optimum_seconds(costs.save_seconds, mtbf), costs.commit_delay_seconds)
    # A part of a step in a billion is rounding, and no step.
    below = max(1, math.floor(seconds / costs.step_seconds * (1 + 1e-9)))
    return min((below, below + 1), key=lambda steps: _log_slowness(costs, mtbf, steps))


def writing_steps(costs: Costs) -> int:
    """Steps that are made while a checkpoint is written: with fewer between saves, each waits for the one before."""
    return math.ceil(costs.commit_delay_seconds / costs.step_seconds * (1 - 1e-9))


def _lost_by_a_save(costs: Costs, work: float) -> float:
    """Seconds, what it waits for the one before with them. `work`: seconds between two saves."""
    return costs.save_seconds + max(0.0, costs.commit_delay_seconds - work)


def expected_loss(costs: Costs, period_steps: int) -> Loss:
    """What a day loses when a job saves every `period_steps` steps."""
    work, mtbf = period_steps * costs.step_seconds, costs.mtbf_seconds
    save = _lost_by_a_save(costs, work)
    if mtbf is None:
        saves = DAY_SECONDS * save / (work + save)
        return Loss(saves, saves, 0.0, 0.0)
    useful = math.exp(-_log_slowness(costs, mtbf, period_steps)) * DAY_SECONDS
    saves = useful * save / work
    # A restart takes its time, or ends by the next crash.
    restarts = -DAY_SECONDS * math.expm1(-costs.restart_seconds / mtbf)
    total = DAY_SECONDS - useful
    return Loss(total, saves, max(0.0, total - saves - restarts), restarts)


def _log_slowness(costs: Costs, mtbf: float, period_steps: int) -> float:
    """The logarithm of T(t) / 1, which does not overflow: how much longer all takes than the work alone."""
    work = period_steps * costs.step_seconds
    restart = costs.restart_seconds + min(work, costs.commit_delay_seconds)
    length = (work + _lost_by_a_save(costs, work)) / mtbf
    grown = length + math.log1p(-math.exp(-length)) if length > 1 else math.log(math.expm1(length))
    return restart / mtbf + grown - math.log(work / mtbf)


def bound_steps(costs: Costs, max_loss_minutes: float) -> int:
    """The longest period by which a crash costs at most so much: the work since the last commit, and a save under way.

    At least one step, so many that saves take half of the time at most, and so many that none waits for the one before.
    """
    left = max_loss_minutes * 60 - costs.save_seconds - costs.commit_delay_seconds
    # A part of a step in a billion is rounding, and no step.
    fitting = math.floor(left / costs.step_seconds * (1 + 1e-9))
    half = math.ceil(costs.save_seconds / costs.step_seconds * (1 - 1e-9))
    return max(1, fitting, half, writing_steps(costs))


def advise(costs: Costs, max_loss_minutes: float = DEFAULT_MAX_LOSS_MINUTES) -> Advice:
    """The period with the smallest expected loss among those by which a crash costs at most `max_loss_minutes`.

    Without a known failure rate, the longest of those.
    """
    best, bound = optimum_steps(costs), bound_steps(costs, max_loss_minutes)
    if best is not None and best <= bound:
        return Advice(best, (_why_best(costs, best),), expected_loss(costs, best), best, False)
    reasons = [_why_bound(costs, bound, max_loss_minutes)]
    if best is None:
        reasons.insert(0, "no failure rate is known")
    else:
        reasons.insert(0, f"without a bound {spoken_steps(best)} would cost least")
    return Advice(bound, tuple(reasons), expected_loss(costs, bound), best, True)


def spoken_steps(steps: int) -> str:
    """A number of steps as text."""
    return "1 step" if steps == 1 else f"{steps} steps"


def _with_time(costs: Costs, steps: int) -> str:
    return f"{spoken_steps(steps)} ({spoken(steps * costs.step_seconds)})"


def _why_best(costs: Costs, steps: int) -> str:
    assert costs.mtbf_seconds is not None
    verb = "costs" if steps == 1 else "cost"
    reason = (
        f"{_with_time(costs, steps)} {verb} least where a save costs {spoken(costs.save_seconds)} and a failure comes "
        f"every {spoken(costs.mtbf_seconds)}"
    )
    if optimum_seconds(costs.save_seconds, costs.mtbf_seconds) < costs.commit_delay_seconds:
        reason += f", and writing takes {spoken(costs.commit_delay_seconds)}: sooner, a save waits for the one before"
    return reason


def _why_bound(costs: Costs, steps: int, minutes: float) -> str:
    most = f"{minutes:g} min"
    if steps * costs.step_seconds + costs.save_seconds + costs.commit_delay_seconds <= minutes * 60 * (1 + 1e-9):
        return f"a crash is to cost {most} at most: {_with_time(costs, steps)} and a save"
    if steps == 1:
        return f"a crash costs more than {most} in any case: a step takes {spoken(costs.step_seconds)}"
    if steps == writing_steps(costs):
        return (
            f"a crash is to cost {most} at most, which cannot be: writing a checkpoint takes "
            f"{spoken(costs.commit_delay_seconds)}, and a save that comes sooner waits for the one before"
        )
    return (
        f"a crash is to cost {most} at most, which would leave more time to saves ({spoken(costs.save_seconds)} each) "
        "than to steps: half of the time is for steps"
    )


# A period that is worth a change is off by this factor, and grows by no more than the other at once.
_WORTH_IT = 1.25
_GROWTH = 4
# What is written takes longer at one time than at another: where a period is as long as that takes, it is made longer
# by this, so that few saves wait, and small differences change nothing.
_SPARE = 1.1


def next_period(present: int, advised: int, least: int = 0) -> int:
    """The period to go on with: small differences change nothing, and a large growth comes in several changes, since it
    was measured over few steps.

    Args:
        present, advised: steps between two saves.
        least: with fewer steps, each save waits for the one before: that is left behind at once.
    """
    if present >= least and present / _WORTH_IT < advised < present * _WORTH_IT:
        return present
    return max(min(advised, present * _GROWTH), math.ceil(least * _SPARE))
