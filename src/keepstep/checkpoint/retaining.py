"""Decides what a save may delete: the plan's policies over what the folder says."""

import logging
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from keepstep.errors import CouldNotLookError
from keepstep.plan.metrics import names_in
from keepstep.plan.policies import Rules
from keepstep.plan.retention import Verdict, retain
from keepstep.plan.scores import Score, measured
from keepstep.storage.candidates import candidates_of
from keepstep.storage.scoring.scores import read_scores
from keepstep.storage.survey import SurveyedCheckpoint

logger = logging.getLogger("keepstep")


def decide(
    folder: Path,
    complete: Sequence[SurveyedCheckpoint],
    num_to_keep: int | None,
    rules: Rules,
    protected: Collection[int],
    held: Collection[int],
    newest: int | None = None,
) -> tuple[Verdict, ...]:
    """A verdict for each checkpoint. Scores that cannot be read are a warning: what they may speak for stays.

    Args:
        folder: the run's.
        complete: its complete checkpoints.
        num_to_keep: how many of the newest stay; None: all.
        rules: what stays beside those.
        protected: steps that stay in any case; they count.
        held: steps that are pinned, read, or not copied elsewhere yet.
        newest: the step just written, whatever its number; None: the highest. Nothing takes it.
    """
    rows = _rows(folder, rules)
    verdicts = retain(
        candidates_of(complete, rules, rows or ()),
        rules.beside(num_to_keep),
        protected=protected,
        held=held,
        newest=newest,
        now=time.time(),
        scores_known=rows is not None,
        budget_bytes=rules.budget_bytes,
    )
    kept = sum(one.size for one in verdicts if one.keep)
    if rules.budget_bytes is not None and kept > rules.budget_bytes:
        logger.warning(
            "the checkpoints in %s that must stay take %.1f GB, more than the disk budget of %.1f GB",
            folder,
            kept / 1e9,
            rules.budget_bytes / 1e9,
        )
    return verdicts


def _rows(folder: Path, rules: Rules) -> tuple[Score, ...] | None:
    """The scores, where rules need them; None where they cannot be read."""
    if not rules.needs_scores:
        return ()
    try:
        rows = read_scores(folder)
    except CouldNotLookError as error:
        logger.warning("%s; what may be the best stays until it can be read", error)
        return None
    known = names_in(measured(rows))
    for name in rules.metrics:
        if known and name not in known:
            logger.warning(
                "no checkpoint has a score %s so far, so none stays for it; there are: %s", name, ", ".join(known)
            )
    return rows
