"""torch's learning-rate schedulers: horizon and base rates from the present object, position from the checkpoint."""

import copy
import logging
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from torch.optim.lr_scheduler import (
    CyclicLR,
    LambdaLR,
    LRScheduler,
    MultiplicativeLR,
    OneCycleLR,
    ReduceLROnPlateau,
)

from keepstep.errors import StateMismatchError
from keepstep.state.stateful import StatefulComponent, restore_state

logger = logging.getLogger("keepstep")

# What moves while a schedule runs; all else in a scheduler's state is how it was set up.
_POSITION = frozenset(
    {"last_epoch", "_step_count", "_last_lr", "_get_lr_called_within_step", "_is_initial"}
    | {"best", "num_bad_epochs", "cooldown_counter", "mode_worse", "_milestones_seen", "T_cur", "T_i"}
)
# Options of a parameter group that schedulers set; some move the momentum too.
_RATES = frozenset({"lr", "initial_lr", "max_lr", "min_lr"})
_MOMENTA = frozenset({"momentum", "betas", "max_momentum", "base_momentum"})


def moved_options(scheduler: Any) -> frozenset[str]:
    """The options of a parameter group that this scheduler moves from step to step; none without one.

    A plateau scheduler changes the rate seldom, and by what it has seen: a rate that differs is worth a log line.
    """
    if scheduler is None or isinstance(scheduler, ReduceLROnPlateau):
        return frozenset()
    if not isinstance(scheduler, LRScheduler):
        return _RATES | _MOMENTA
    moves_momentum = any(isinstance(part, OneCycleLR | CyclicLR) for part in _parts(scheduler))
    return _RATES | _MOMENTA if moves_momentum else _RATES


def _parts(scheduler: Any) -> Iterator[Any]:
    """A scheduler and those inside it."""
    yield scheduler
    for inner in getattr(scheduler, "_schedulers", ()):
        yield from _parts(inner)


def _steps_of(state: Any) -> int:
    """How often a scheduler was stepped; a chained one has no count of its own."""
    if "last_epoch" in state:
        return int(state["last_epoch"])
    return max(_steps_of(inner) for inner in state["_schedulers"])


class TorchSchedulerComponent(StatefulComponent):
    """A scheduler of torch.

    Its load_state_dict brings everything back, also the old total, so that a raised total would be ignored in silence.
    Where the present object was set up as the saved one was, that is what it does, bit for bit. Where it was not, the
    present one is stepped to the saved position, and what changed is listed in the log.
    """

    def __init__(self, scheduler: LRScheduler) -> None:
        super().__init__("lr_scheduler", scheduler)
        self._scheduler = scheduler
        self._fresh = copy.deepcopy(_plain(scheduler.state_dict()))
        self._options = [
            {key: copy.deepcopy(group[key]) for key in moved_options(scheduler) if key in group}
            for group in scheduler.optimizer.param_groups
        ]

    def apply(self, values: Mapping[str, Any]) -> None:
        saved = restore_state("lr_scheduler", values)
        changed = _differences(_plain(saved), self._fresh)
        inner = [part for part in _parts(self._scheduler) if part is not self._scheduler]
        # Functions are no state. A scheduler that multiplies, or stands inside another, follows them only step by step.
        by_function = isinstance(self._scheduler, MultiplicativeLR) or any(
            isinstance(part, LambdaLR | MultiplicativeLR) for part in inner
        )
        if by_function and _steps_of(self._fresh) == 0:
            self._replay(_steps_of(saved), "functions of the step")
            return
        if not changed:
            self._scheduler.load_state_dict(saved)
            if isinstance(self._scheduler, LambdaLR):
                self._follow_lambdas()
            return
        what = ", ".join(changed)
        if isinstance(self._scheduler, ReduceLROnPlateau):
            self._scheduler.load_state_dict({**self._scheduler.state_dict(), **_position(saved)})
        else:
            self._replay(_steps_of(saved), what)
        logger.warning("the learning-rate scheduler was set up in another way when this was saved: %s", what)

    def _replay(self, steps: int, what: str) -> None:
        kind = type(self._scheduler).__name__
        if _steps_of(self._fresh) != 0:
            raise StateMismatchError(
                f"lr_scheduler: the {kind} was set up in another way when this was saved ({what}), and the present one "
                "has been stepped already; create it anew before resume()"
            )
        for group, options in zip(self._scheduler.optimizer.param_groups, self._options, strict=True):
            group.update(copy.deepcopy(options))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns that the optimizer has not stepped in between
            for done in range(steps):
                try:
                    self._scheduler.step()
                except ValueError as error:
                    raise StateMismatchError(
                        f"lr_scheduler: the {kind} was set up in another way when this was saved ({what}) and does not "
                        f"reach the saved position: at step {done} of {steps}: {error}"
                    ) from error

    def _follow_lambdas(self) -> None:
        # A function is no state: what it says now for the saved position counts. Unchanged, it gives the same bits.
        scheduler: Any = self._scheduler
        rates = [
            base * function(scheduler.last_epoch)
            for base, function in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
        ]
        for group, rate in zip(scheduler.optimizer.param_groups, rates, strict=True):
            if not hasattr(group["lr"], "fill_"):
                group["lr"] = rate
        scheduler._last_lr = [group["lr"] for group in scheduler.optimizer.param_groups]


def _plain(state: Any) -> Any:
    """A state without objects that have no state of their own (functions, nested optimizers)."""
    if isinstance(state, dict):
        return {key: _plain(value) for key, value in state.items() if key != "optimizer"}
    if isinstance(state, list | tuple):
        return [_plain(value) for value in state]
    return None if callable(state) else state


def _differences(saved: Any, present: Any, path: str = "") -> list[str]:
    """How the two were set up differently: "T_max 40 when saved, 60 now"."""
    if isinstance(saved, dict) and isinstance(present, dict) and all(isinstance(key, str) for key in saved):
        keys = [key for key in saved if key in present and key not in _POSITION]
        return [line for key in keys for line in _differences(saved[key], present[key], f"{path}{key}.")]
    if isinstance(saved, list) and isinstance(present, list) and any(isinstance(part, dict) for part in saved):
        pairs = zip(saved, present, strict=False)
        return [line for i, (a, b) in enumerate(pairs) for line in _differences(a, b, f"{path}{i}.")]
    same = bool(saved == present)
    return [] if same else [f"{path.rstrip('.')} {saved} when saved, {present} now"]


def _position(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key in _POSITION}
