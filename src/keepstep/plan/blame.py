"""What to blame for the first step in which two traces differ: rules, in the order in which things cause each other."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from keepstep.plan.trace import Digests, Start, Step, Trace

# Of these a run has its own: a tracker's run id. What the data loader says of its position is judged by what it gives.
# Random states are compared by kind.
OWN = ("tracker.*", "rng.*")
_IN_MOTION = ("data.*", "rng.*")
# What one step's state is blamed on when several parts differ at once: causes stand before what they change.
_CAUSES = ("lr_scheduler", "optimizer", "buffers", "model", "task", "metrics", "data")
_SHOWN = 5


@dataclass(frozen=True)
class Divergence:
    """The first difference between a run without a stop and one that was resumed.

    Attributes:
        component: what is to blame: rng, data, optimizer, lr_scheduler, model, loss, or another part of the state.
        step: the first step that differs.
        what: what differs.
        why: what it points to, and what to do.
        rank: on which rank.
    """

    component: str
    step: int
    what: str
    why: str
    rank: int = 0


@dataclass(frozen=True)
class Case:
    """One rank's two traces around the first step that differs."""

    whole: Trace
    resumed: Trace
    saved: Step | None
    step: int
    ignore: Sequence[str] = field(default_factory=tuple)

    @property
    def a(self) -> Step:
        return self.whole.steps[self.step]

    @property
    def b(self) -> Step:
        return self.resumed.steps[self.step]

    @property
    def start(self) -> Start:
        return self.resumed.start


def not_restored(saved: Step | None, start: Start, ignore: Sequence[str]) -> Divergence | None:
    """What `resume()` left otherwise than it was saved."""
    if saved is None:
        return None
    step = start.step + 1
    random = [kind for kind in saved.after if saved.after[kind] != start.random.get(kind)]
    keys = differing(saved.state, start.state, (*_IN_MOTION, *ignore))
    if keys:
        what = f"right after resume() it is not what was saved: {_names(keys)}"
        return Divergence(_component(keys), step, what, "its load_state_dict does not bring back what state_dict gave")
    if random:
        what = f"right after resume() the state of {_names(random)} is not the saved one"
        return Divergence("rng", step, what, "the random states were not restored")
    return None


def _seeded_anew(case: Case) -> Divergence | None:
    kinds = _changed(case.a.random, case.b.random) or _changed(case.a.after, case.b.after)
    if case.saved is None or not kinds:
        return None
    what = f"the random states of {_names(kinds)} differ"
    beginning = case.whole.steps[min(case.whole.steps)].random
    if case.b.seeded:
        what += f"; they were seeded after resume(): {_names(case.b.seeded)}"
    elif any(kind in beginning and beginning[kind] == case.b.random.get(kind) for kind in kinds):
        what += " and are those of the run's first step"
    else:
        return None
    return Divergence("rng", case.step, what, "seeding again throws the restored random states away: seed before")


def _changed_before_the_first_step(case: Case) -> Divergence | None:
    first = case.resumed.steps.get(case.start.step + 1)
    if case.saved is None or first is None or not first.entered:
        return None
    keys = [
        key
        for key in differing(case.start.state, first.entered, case.ignore)
        if key.startswith(("lr_scheduler.", "optimizer.", "model."))
    ]
    if not keys:
        return None
    component = _component(keys)
    keys = [key for key in keys if _owner(key) == component]
    why = {
        "lr_scheduler": "its position was restored by resume() and then moved once more: do not step it again",
        "optimizer": "it was changed after resume() had restored it",
        "model": "the weights were set again after resume() had restored them: build and fill the model before",
    }
    what = f"it changed between resume() and the first forward pass: {_names(keys)}"
    return Divergence(component, case.start.step + 1, what, why.get(component, ""))


def _other_inputs(case: Case) -> Divergence | None:
    samples = case.a.notes.get("samples"), case.b.notes.get("samples")
    if case.a.inputs == case.b.inputs and samples[0] == samples[1]:
        return None
    what = "the forward passes were given other inputs"
    if samples[0] != samples[1]:
        what = f"the samples were {samples[1]}, and {samples[0]} without a stop"
    # A later step's would be the next that the global random state gives.
    if samples[0] is not None and samples[0] == samples[1]:
        why = (
            "the samples are the same: what is made of them differs. The data set, or what augments it, draws from a "
            "random state of its own that is not saved"
        )
        return Divergence("data", case.step, what, why)
    elsewhere = [s for s, step in case.whole.steps.items() if s < case.step and step.inputs == case.b.inputs != ()]
    if elsewhere:
        return Divergence("data", case.step, what, _moved(case, elsewhere[0]))
    if case.a.random != case.b.random:
        kinds = _names(_changed(case.a.random, case.b.random))
        why = (
            f"numbers of {kinds} were drawn after resume() that were not drawn there without a stop: the order comes "
            "from the global random state. Give the sampler a generator of its own, seeded by seed and epoch, or "
            "register the loader as data="
        )
    else:
        why = (
            "the random states are equal: the sampler's position, epoch (set_epoch) or random order is not restored, "
            "as with a sampler that has no state_dict, or the loader is not registered as data="
        )
    return Divergence("data", case.step, what, why)


def _moved(case: Case, elsewhere: int) -> str:
    epoch, apart = case.a.steps_in_epoch, case.step - elsewhere
    if epoch and apart and apart % epoch == 0:
        epochs = abs(apart) // epoch
        return (
            f"they are those of step {elsewhere}, {epochs} epoch{'s' if epochs > 1 else ''} away: the sampler has "
            "forgotten its epoch (call set_epoch after resume, or keep the epoch in its state)"
        )
    if elsewhere == 1 or elsewhere == case.step - case.start.step:
        return f"they are those of step {elsewhere}: the data began anew, its position is not restored"
    return (
        f"they are those of step {elsewhere}: the sampler's epoch or position is not restored (set_epoch after resume)"
    )


def _other_random_numbers(case: Case) -> Divergence | None:
    kinds = _changed(case.a.random, case.b.random)
    if not kinds:
        return None
    what = f"the random states of {_names(kinds)} differ at the first forward pass"
    why = (
        "something drew random numbers between resume() and the step that does not draw them there without a stop (a "
        "DataLoader without generator= does, whenever it is iterated)"
    )
    return Divergence("rng", case.step, what, why)


def _other_outputs(case: Case) -> Divergence | None:
    if case.a.outputs == case.b.outputs:
        return None
    what = "the forward pass gave other outputs from equal inputs, weights and random states"
    why = (
        "state that is in no state_dict (buffers that are not persistent, attributes), train() or eval() at another "
        "time, or an operation that is not deterministic"
    )
    return Divergence("model", case.step, what, why)


def _idle_optimizer(case: Case) -> Divergence | None:
    before = case.resumed.steps[case.step - 1].state if case.step - 1 in case.resumed.steps else case.start.state
    learns = bool(_changed_keys(before, case.b.state, "model."))
    if case.b.rates or not learns:
        return None
    if not any(key.startswith("optimizer.") for key in case.b.state):
        why = "no optimizer is registered, so its moments were not saved: JobState(optimizer=...)"
        return Divergence("optimizer", case.step, "equal inputs changed the weights in another way", why)
    what = "the weights changed, and the registered optimizer made no step"
    why = "another optimizer trains the model, one that was built after resume() and knows nothing of the saved moments"
    return Divergence("optimizer", case.step, what, why)


def _other_rates(case: Case) -> Divergence | None:
    if case.a.rates == case.b.rates:
        return None
    if len(case.a.rates) != len(case.b.rates):
        what = f"the optimizer made {len(case.b.rates)} steps, and {len(case.a.rates)} without a stop"
        return Divergence("optimizer", case.step, what, "steps are counted or skipped in another way after a resume")
    what = f"the learning rate was {_rates(case.b)}, and {_rates(case.a)} without a stop"
    return Divergence("lr_scheduler", case.step, what, _why_other_rates(case))


def _why_other_rates(case: Case) -> str:
    if any(key.startswith("lr_scheduler.") for key in case.b.state):
        return "the scheduler was stepped more or less often than without a stop, or its state is incomplete"
    return "no lr_scheduler is registered, so its position was not saved"


def _other_notes(case: Case) -> Divergence | None:
    names = [name for name in case.a.notes if case.a.notes[name] != case.b.notes.get(name)]
    if not names:
        return None
    name = "loss" if "loss" in names else names[0]
    what = f"{name} was {case.b.notes.get(name)}, and {case.a.notes[name]} without a stop"
    return Divergence(name, case.step, what, "what it is computed from holds state that is not saved")


def _other_state(case: Case) -> Divergence | None:
    keys = differing(case.a.state, case.b.state, (*OWN, *case.ignore))
    if not keys:
        return None
    component = _component(keys)
    why = {
        "lr_scheduler": _why_other_rates(case),
        "optimizer": "its moments or options developed in another way",
        "model": "the weights developed in another way: gradients (clipping, scaling, several backward passes) differ",
        "data": "the loader's position is another one",
    }
    what = f"at the end of the step these differ: {_names(key for key in keys if _owner(key) == component)}"
    reason = why.get(component, "it holds state that is not saved")
    if not case.a.inputs:
        reason = (
            f"no forward pass of the registered model was seen (is it called as model(...)?), so that other inputs, a "
            f"sampler that is not restored, may be behind it; or {reason}"
        )
    return Divergence(component, case.step, what, reason)


def _other_random_numbers_after(case: Case) -> Divergence | None:
    kinds = _changed(case.a.after, case.b.after)
    what = f"the random states of {_names(kinds)} differ at the end of the step"
    return Divergence("rng", case.step, what, "something drew random numbers that it does not draw without a stop")


RULES: tuple[Callable[[Case], Divergence | None], ...] = (
    _seeded_anew,
    _changed_before_the_first_step,
    _other_inputs,
    _other_random_numbers,
    _other_outputs,
    _idle_optimizer,
    _other_rates,
    _other_notes,
    _other_state,
    _other_random_numbers_after,
)


def differing(a: Digests, b: Digests, ignore: Iterable[str]) -> list[str]:
    """Keys whose digests differ, but for those that match a pattern."""
    keys = sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key))
    return [key for key in keys if not any(fnmatchcase(key, pattern) for pattern in ignore)]


def _changed(a: Digests, b: Digests) -> list[str]:
    return differing(a, b, ())


def _changed_keys(a: Digests, b: Digests, prefix: str) -> list[str]:
    return [key for key in _changed(a, b) if key.startswith(prefix)]


def _component(keys: Sequence[str]) -> str:
    found = {_owner(key) for key in keys}
    return next((name for name in _CAUSES if name in found), sorted(found)[0])


def _owner(key: str) -> str:
    """The part that a key belongs to; the rate that lies in an optimizer is its scheduler's."""
    name = key.split(".")[0]
    is_rate = name == "optimizer" and key.rpartition(".")[2] in ("lr", "initial_lr")
    return "lr_scheduler" if is_rate else name


def _names(values: Iterable[Any]) -> str:
    names = list(map(str, values))
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _rates(step: Step) -> str:
    return ", ".join(f"{rate:.9g}" for rates in step.rates for rate in rates)
