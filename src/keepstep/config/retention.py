"""What stays of a run's checkpoints beside the newest."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from keepstep.config.base import NoBool, Section
from keepstep.config.bounds import parse_guard


def _full_name(name: str) -> str:
    name = name.strip()
    before, _, after = name.partition("/")
    if not before or not after or (before.rstrip(), after.lstrip()) != (before, after):
        raise ValueError("must be the full name of a metric, <set>/<metric>: task/accuracy")
    return name


def _several(value: Any) -> Any:
    """One or several."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _bounds(texts: tuple[str, ...]) -> tuple[str, ...]:
    for text in texts:
        _full_name(parse_guard(text).metric)
    return texts


class KeepBest(Section):
    """The best by a score.

    Attributes:
        metric: by its full name, `<set>/<metric>`.
        mode: "max": the highest is the best; "min": the lowest.
        number: so many stay. A checkpoint without a score, or with NaN, is never among them.
        guards: bounds that other metrics must keep, or the checkpoint is not among them: `canary/accuracy>=0.9`.
    """

    metric: Annotated[str, AfterValidator(_full_name)]
    mode: Literal["max", "min"]
    number: Annotated[int, Field(ge=1, strict=True)] = 1
    guards: Annotated[tuple[str, ...], BeforeValidator(_several), AfterValidator(_bounds)] = ()


class Keep(Section):
    """What stays beside the `num_to_keep` newest, and what all of it may take.

    Attributes:
        every_steps: the first checkpoint at or after each multiple of it stays for ever.
        best: the best by a score stay; one such rule or a list of them.
        younger_than_hours: what was made less than so many hours ago stays.
        disk_budget_gb: the most that a run's checkpoints take after a save, in GB of 10^9 bytes. What is worth least
            goes first; never the newest, nor what is pinned or read.
    """

    every_steps: Annotated[int | None, Field(ge=1, strict=True)] = None
    best: Annotated[tuple[KeepBest, ...], BeforeValidator(_several)] = ()
    younger_than_hours: Annotated[float | None, Field(gt=0), NoBool] = None
    disk_budget_gb: Annotated[float | None, Field(gt=0), NoBool] = None

    @property
    def adds(self) -> bool:
        """Whether it keeps anything beside the newest."""
        return self.every_steps is not None or bool(self.best) or self.younger_than_hours is not None
