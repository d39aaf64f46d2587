"""Where two runs that should be twins part: a pure comparison of their traces."""

from collections.abc import Sequence
from dataclasses import replace

from keepstep.plan.blame import OWN, RULES, Case, Divergence, differing, not_restored
from keepstep.plan.trace import Digests, Start, Step, Trace


def unseeded(a: Start, b: Start) -> frozenset[str]:
    """The random states that the job leaves to chance: they differ at the beginning of two fresh runs."""
    return frozenset(differing(a.random, b.random, ()))


def diagnose(
    whole: Trace,
    resumed: Trace,
    saved: Step | None,
    ignore: Sequence[str] = (),
    chance: frozenset[str] = frozenset(),
    rank: int = 0,
) -> Divergence | None:
    """Compare a resumed run with one that was not stopped. None means: equal, bit for bit, in every step of both.

    Args:
        whole: the run without a stop.
        resumed: the run that began where another was stopped (or, to see if a job repeats itself, at the beginning).
        saved: the step at which that other was stopped; None for a run that began at the beginning.
        ignore: keys of state that may differ, as patterns (`task.started_at`).
        chance: random states that are not seeded; they are no difference, what is made from them is.
        rank: whose traces these are.
    """
    whole, resumed = _without_chance(whole, chance), _without_chance(resumed, chance)
    common = sorted(whole.steps.keys() & resumed.steps.keys())
    first = next((step for step in common if _differ(whole.steps[step], resumed.steps[step], ignore)), None)
    # Of a tracker the main process's state counts, and other ranks take that over.
    exempt = ignore if rank == 0 else (*ignore, "tracker.*")
    lost = not_restored(saved and _seeded(saved, chance), resumed.start, exempt)
    if first is None:
        return _with_rank(lost, rank)
    case = Case(whole, resumed, saved, first, ignore)
    found = lost if saved is not None else None
    for rule in RULES:
        found = found or rule(case)
    return _with_rank(found, rank)


def _without_chance(trace: Trace, chance: frozenset[str]) -> Trace:
    start = replace(trace.start, random=_without(trace.start.random, chance))
    return Trace(start, {number: _seeded(step, chance) for number, step in trace.steps.items()})


def _seeded(step: Step, chance: frozenset[str]) -> Step:
    return replace(step, random=_without(step.random, chance), after=_without(step.after, chance))


def _without(random: Digests, chance: frozenset[str]) -> Digests:
    return {kind: digest for kind, digest in random.items() if kind not in chance}


def _with_rank(found: Divergence | None, rank: int) -> Divergence | None:
    return found and Divergence(found.component, found.step, found.what, found.why, rank)


def _differ(a: Step, b: Step, ignore: Sequence[str]) -> bool:
    same = (a.inputs, a.outputs, a.random, a.rates, a.notes, a.after) == (
        (b.inputs, b.outputs, b.random, b.rates, b.notes, b.after)
    )
    return not same or bool(differing(a.state, b.state, (*OWN, *ignore)))


__all__ = ["Divergence", "diagnose", "unseeded"]
