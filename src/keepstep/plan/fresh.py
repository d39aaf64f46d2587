"""`--fresh` throws a run's place away, so it acts once: schedulers run the same command line after every reclaim."""

from collections.abc import Mapping
from typing import Any


def acts(record: Mapping[str, Any] | None, submission: str | None, *, finished: bool) -> bool:
    """Whether a request for a fresh start is a new one.

    Args:
        record: what was noted when such a request was last acted on; None when none was.
        submission: what tells this submission of the job from others (a scheduler's job id); None where nothing does.
        finished: whether the run has come to its end since.

    Returns:
        False when the run that is there is the one that this request has begun: it goes on.
    """
    if record is None:
        return True
    if submission is not None or record.get("submission") is not None:
        return bool(record.get("submission") != submission)
    return finished
