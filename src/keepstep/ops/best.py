"""Finds the best checkpoint by its scores."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from keepstep.config.address import Address
from keepstep.config.bounds import parse_guard
from keepstep.errors import ConfigError, CouldNotLookError
from keepstep.ops.pin import pin_checkpoint
from keepstep.ops.place import is_checkpoint, survey_address
from keepstep.ops.scoring.places import LocalPlace, has_names
from keepstep.plan import layout
from keepstep.plan.choice import Choice, Standing, choose
from keepstep.plan.manifest import Manifest, manifest_digest
from keepstep.plan.metrics import Mode, names_in, shown
from keepstep.plan.resume import Condition, Found
from keepstep.plan.scores import measured
from keepstep.storage.digest import digest_of_bytes
from keepstep.storage.naming import naming_in
from keepstep.storage.scoring.scores import read_scores, unreadable_lines
from keepstep.storage.survey import survey


@dataclass(frozen=True)
class Best:
    """A choice, and where what was chosen lies.

    Attributes:
        folder: what was looked at.
        path: of the chosen checkpoint; None where there is none.
        unreadable_lines: of the scores; they do not count.
    """

    folder: str
    choice: Choice
    path: str | None
    unreadable_lines: int = 0


def find_best(
    place: Path | Address, metric: str, mode: Mode, guards: Iterable[str] = (), scores: Path | None = None
) -> Best:
    """Choose among the complete checkpoints of a run.

    Args:
        place: the run's folder, or its address on a mirror.
        metric: that decides.
        mode: "max": the highest value is the best.
        guards: bounds that other metrics must keep: `canary/accuracy>=0.9`.
        scores: the folder that holds `scores.jsonl`; None: the run's own.

    Raises:
        ConfigError: a guard is none, or a name means several metrics, or none.
        CouldNotLookError: checkpoints or scores cannot be read.
    """
    bounds = [parse_guard(guard) for guard in guards]
    where = _scores_folder(place, scores)
    known = measured(read_scores(where))
    there = _there(place)
    complete = [(one.step, one.digest) for one in there if one.digest]
    choice = choose(known, complete, metric, mode, bounds, {one.step for one in there if not one.digest})
    # Of the same bytes under two names the first.
    path = next((one.path for one in there if choice.chosen_digest and one.digest == choice.chosen_digest), None)
    return Best(str(place), choice, path, unreadable_lines(where))


def metrics_of(place: Path | Address, scores: Path | None = None) -> dict[str, int]:
    """All metrics that a run has scores of, and how many checkpoints have each. Raises as `find_best`."""
    return names_in(measured(read_scores(_scores_folder(place, scores))))


def pin_best(best: Best) -> None:
    """Pin what was chosen, with the reason as note where it has none. Raises as `keepstep.ops.pin.pin_checkpoint`."""
    choice, path = best.choice, Path(best.path or "")
    value = next(row.values[choice.metric] for row in choice.rows if row.standing is Standing.CHOSEN)
    pin_checkpoint(path, f"best by {choice.metric} = {shown(value)}", only_if_none=True)


def _scores_folder(place: Path | Address, scores: Path | None) -> Path:
    if scores is not None:
        if not scores.is_dir():
            raise CouldNotLookError(f"{scores}: there is no such folder")
        return scores
    if isinstance(place, Address):
        raise ConfigError(f"{place}: a mirror holds no scores; name the folder that does with --scores FOLDER")
    return place


@dataclass(frozen=True)
class _There:
    """A checkpoint that is there. `digest`: of its manifest; empty where it is not complete."""

    step: int
    digest: str
    path: str


def _there(place: Path | Address) -> list[_There]:
    if isinstance(place, Address):
        if is_checkpoint(place):
            raise CouldNotLookError(f"{place} is one checkpoint; give the address of its run")
        stored = survey_address(place).checkpoints
        return [_of(one.found, one.manifest, str(place.joined(one.files.name))) for one in stored]
    if not place.exists():
        raise CouldNotLookError(f"{place}: there is no such folder")
    if layout.any_step_of(place.resolve().name) is not None and (place / layout.MANIFEST).is_file():
        raise CouldNotLookError(f"{place} is one checkpoint; give the folder of its run")
    if has_names(place):
        return [_There(one.step, one.digest, str(place / one.name)) for one in LocalPlace(place).checkpoints()]
    return [_of(c.found, c.manifest, str(c.path)) for c in survey(place, naming_in(place)).checkpoints]


def _of(found: Found, manifest: Manifest | None, path: str) -> _There:
    is_complete = found.condition is Condition.COMPLETE and manifest is not None
    return _There(found.step, manifest_digest(manifest, digest_of_bytes) if is_complete and manifest else "", path)
