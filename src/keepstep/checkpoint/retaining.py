"""Decides what a save may delete: the plan's policies over what the folder says."""

import logging
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from keepstep.errors import CouldNotLookError
from keepstep.plan.metrics import names_in
from keepstep.plan.policies import Rules
from keepstep.plan.retention import Verdict, retain
from keepstep.plan.scores import Measured
from keepstep.storage.candidates import candidates_of
from keepstep.storage.score_file import reader_of
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
    passing: Collection[int] = (),
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
        passing: those that are held and will be let go by themselves: no budget gives up others for them.
    """
    known, is_all = _known(folder, rules)
    verdicts = retain(
        candidates_of(complete, rules, known),
        rules.beside(num_to_keep),
        protected=protected,
        held=held,
        passing=passing,
        newest=newest,
        now=time.time(),
        scores_known=is_all,
        budget_bytes=rules.budget_bytes,
    )
    _tell_of_budget(folder, verdicts, rules.budget_bytes)
    return verdicts


def _tell_of_budget(folder: Path, verdicts: Collection[Verdict], budget: int | None) -> None:
    kept = sum(one.size for one in verdicts if one.keep)
    if budget is None or kept <= budget:
        return
    apart = sum(one.size for one in verdicts if one.apart)
    if kept - apart > budget:
        logger.warning(
            "the checkpoints in %s that must stay take %.1f GB, more than the disk budget of %.1f GB",
            folder,
            kept / 1e9,
            budget / 1e9,
        )
    else:
        logger.warning(
            "the checkpoints in %s take %.1f GB, more than the disk budget of %.1f GB, until readers and uploads let "
            "go of %.1f GB",
            folder,
            kept / 1e9,
            budget / 1e9,
            apart / 1e9,
        )


def _known(folder: Path, rules: Rules) -> tuple[tuple[Measured, ...], bool]:
    """What is known of checkpoints, where rules need it, and whether that is all, or some of it is lost for now."""
    if not rules.needs_scores:
        return (), True
    reader = reader_of(folder)
    try:
        found = reader.read(folder)
    except CouldNotLookError as error:
        logger.warning("%s; what may be the best stays until it can be read", error)
        return reader.last, False
    if found.unreadable:
        logger.warning("%s; what may be the best stays until they are mended or deleted", found.told)
        return found.known, False
    if not found.is_there and reader.was_there:
        logger.warning(
            "%s is gone; what may be the best stays until it is there again (an empty one says that nothing is scored)",
            found.path,
        )
        return reader.last, False
    names = names_in(found.known)
    for name in rules.metrics:
        if names and name not in names:
            logger.warning(
                "no checkpoint has a score %s so far, so none stays for it; there are: %s", name, ", ".join(names)
            )
    return found.known, True
