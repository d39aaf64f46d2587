"""What a resume would go on with: where in the data, how many steps are left, and how the learning rate moves."""

from dataclasses import dataclass

from keepstep.config.job import JobConfig
from keepstep.plan.schedule import Segment, factor, segments

_WIDTH, _HEIGHT = 64, 8


@dataclass(frozen=True)
class DataOutlook:
    """Where in the data the next step begins.

    Attributes:
        samples: consumed by all ranks together.
        length: of the data set.
        epoch: completed epochs.
        sample_in_epoch: samples consumed of the present one.
        steps_per_epoch_before, steps_per_epoch_now: as it was saved, and in this job.
    """

    samples: int
    length: int
    epoch: int
    sample_in_epoch: int
    steps_per_epoch_before: int | None
    steps_per_epoch_now: int


@dataclass(frozen=True)
class RateOutlook:
    """The learning rate of the steps to come.

    Attributes:
        steps: some of them, from the first that is left to the last of both schedules.
        before: the rate of each by the saved configuration; None beyond its last step.
        now: by the present one.
    """

    steps: tuple[int, ...]
    before: tuple[float | None, ...]
    now: tuple[float | None, ...]

    @property
    def is_changed(self) -> bool:
        """Whether any rate is another one."""
        return self.before != self.now


def data_outlook(samples: int, length: int, batch_before: int | None, batch_now: int) -> DataOutlook:
    """Where `samples` consumed samples of an endless row of epochs lie."""
    before = None if batch_before is None else -(-length // batch_before)
    return DataOutlook(samples, length, samples // length, samples % length, before, -(-length // batch_now))


def rate_outlook(saved: JobConfig | None, now: JobConfig, step: int) -> RateOutlook | None:
    """The rates after `step` completed steps; None where the job has a scheduler of its own, or nothing is left."""
    present = _Curve.of(now)
    if present is None:
        return None
    before = (_Curve.of(saved) if saved else None) or present
    last = max(before.total, present.total)
    if step >= last:
        return None
    left = last - step
    steps = tuple(dict.fromkeys(step + 1 + round((left - 1) * number / (_WIDTH - 1)) for number in range(_WIDTH)))
    return RateOutlook(steps, tuple(before.rate(one) for one in steps), tuple(present.rate(one) for one in steps))


@dataclass(frozen=True)
class _Curve:
    """Learning rates of a configuration."""

    total: int
    base: float
    phases: tuple[Segment, ...]

    @classmethod
    def of(cls, config: JobConfig) -> "_Curve | None":
        trainer = config.trainer
        if trainer is None or config.providers.lr_scheduler is not None or config.providers.optimizer is not None:
            return None
        phases = segments(trainer.lr_scheduler, trainer.total_steps)
        return cls(trainer.total_steps, trainer.optimizer.lr, phases)

    def rate(self, step: int) -> float | None:
        """The rate of the step with this number; the first is 1."""
        return self.base * factor(self.phases, step - 1) if step <= self.total else None


def plot(rates: RateOutlook) -> str:
    """The rates as text: `*` now, `o` as saved, `#` both."""
    values = [rate for row in (rates.before, rates.now) for rate in row if rate is not None]
    top = max(values)
    rows = [[" "] * len(rates.steps) for _ in range(_HEIGHT)]
    for mark, row in (("o", rates.before), ("*", rates.now)):
        for column, rate in enumerate(row):
            if rate is not None:
                line = _HEIGHT - 1 - (round(rate / top * (_HEIGHT - 1)) if top else 0)
                rows[line][column] = "#" if rows[line][column] != " " else mark
    labels = [f"{top:.3g}" if number == 0 else "0" if number == _HEIGHT - 1 else "" for number in range(_HEIGHT)]
    lines = [f"{label:>9} |{''.join(row).rstrip()}" for label, row in zip(labels, rows, strict=True)]
    first, last = str(rates.steps[0]), str(rates.steps[-1])
    axis = f"{'step':>9}  {first}{last:>{max(1, len(rates.steps) - len(first))}}"
    return "\n".join([*lines, axis, f"{'':9}  * now   o as saved   # both"])
