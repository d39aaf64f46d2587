"""What retention policies judge by, read from the checkpoints."""

import contextlib
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from keepstep.plan import layout
from keepstep.plan.manifest import manifest_digest
from keepstep.plan.retention import Candidate
from keepstep.plan.scores import Measured
from keepstep.storage.digest import digest_of_bytes
from keepstep.storage.run_record import read_record
from keepstep.storage.survey import SurveyedCheckpoint

if TYPE_CHECKING:  # a listing asks for digests, and must not wait for the models of the configuration
    from keepstep.plan.policies import Rules


def candidates_of(
    complete: Iterable[SurveyedCheckpoint], rules: "Rules", known: Iterable[Measured] = ()
) -> tuple[Candidate, ...]:
    """Checkpoints as policies see them. Only what the rules need is looked up.

    Args:
        complete: complete checkpoints.
        rules: what judges them.
        known: what `scores.jsonl` says of checkpoints.
    """
    by_digest = {one.digest: one for one in known} if rules.needs_scores else {}
    return tuple(
        Candidate(
            one.found.step,
            one.manifest.size if one.manifest else 0,
            created_seconds(one) if rules.needs_ages else None,
            by_digest.get(digest_of(one)) if by_digest else None,
        )
        for one in complete
    )


def digest_of(checkpoint: SurveyedCheckpoint) -> str:
    """What stands for a checkpoint in `scores.jsonl`: the digest of its manifest; empty without one."""
    return "" if checkpoint.manifest is None else manifest_digest(checkpoint.manifest, digest_of_bytes)


def digests_of(complete: Iterable[SurveyedCheckpoint]) -> Callable[[int], str]:
    """Tells the digest of the manifest of the checkpoint that has a step; empty where none has."""
    by_step = {one.found.step: one for one in complete}
    return lambda step: digest_of(by_step[step]) if step in by_step else ""


def created_seconds(checkpoint: SurveyedCheckpoint) -> float | None:
    """When a checkpoint was made, in seconds since the epoch: what its run record says, which a copy does not change;
    else the time of its manifest."""
    told = read_record(checkpoint.path).get("created_at")
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        when = datetime.fromisoformat(told)  # type: ignore[arg-type]
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    try:
        return (checkpoint.path / layout.MANIFEST).stat().st_mtime
    except OSError:
        return None
