"""Options that `train`, `infer` and `can-resume` share: what is asked of a job beside its configuration."""

import re
from typing import TYPE_CHECKING, Annotated

import typer

from keepstep.errors import ConfigError

if TYPE_CHECKING:
    from keepstep.job.asked import Asked

Fresh = Annotated[
    bool,
    typer.Option(
        "--fresh", help="Set the run that is there aside and begin anew; once, however often a scheduler runs this."
    ),
]
Accept = Annotated[
    list[str] | None,
    typer.Option(
        "--accept", metavar="FIELD[=VALUE]", help="Accept that this differs from the checkpoint: this value, no other."
    ),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="save-N", help="Go back to this checkpoint and train another line of the run from it; once."
    ),
]
Rehash = Annotated[
    bool, typer.Option("--rehash", help="Read data and base weights again, also files whose digests are remembered.")
]


def asked_for(
    *, fresh: bool = False, go_back: str | None = None, accept: list[str] | None = None, rehash: bool = False
) -> "Asked":
    """What the options ask for. Raises ConfigError for what cannot be meant."""
    from keepstep.job.asked import Asked
    from keepstep.plan.guards import check_wishes

    check_wishes(accept or [])
    if fresh and go_back is not None:
        raise ConfigError("--fresh begins anew and --from goes back: give one of them")
    return Asked(fresh=fresh, from_step=_step(go_back), accept=tuple(accept or ()), rehash=rehash)


def words(asked: "Asked") -> list[str]:
    """The options again, for the ranks."""
    found = ["--fresh"] if asked.fresh else []
    found += ["--from", f"save-{asked.from_step}"] if asked.from_step is not None else []
    found += ["--rehash"] if asked.rehash else []
    return [*found, *(part for wish in asked.accept for part in ("--accept", wish))]


def _step(text: str | None) -> int | None:
    if text is None:
        return None
    found = re.fullmatch(r"(?:save-)?([0-9]{1,18})", text.rstrip("/").rpartition("/")[2], re.ASCII)
    if found is None:
        raise ConfigError(f"--from {text}: must be a checkpoint of this run, such as save-200")
    return int(found[1])
