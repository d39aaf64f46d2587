"""`keepstep.watch`: scores checkpoints of a run as they appear, from another process."""

import logging
from collections.abc import Mapping
from pathlib import Path

from keepstep.config.address import Address
from keepstep.errors import ConfigError, CouldNotLookError, KeepstepError
from keepstep.ops.place import place_of
from keepstep.ops.scoring.places import place_for
from keepstep.ops.scoring.runner import Function
from keepstep.ops.scoring.watcher import DEFAULTS, Watcher, WatchOptions, WatchResult
from keepstep.plan import layout
from keepstep.plan.resume import Condition
from keepstep.plan.score_command import ScoreCommand, parse_commands, split_sets
from keepstep.plan.scores import DEFAULT_SET, is_set_name
from keepstep.storage.local import make_folders
from keepstep.storage.survey import survey

logger = logging.getLogger("keepstep")


def watch(
    folder: str | Path,
    score: str | Function | None = None,
    *,
    sets: Mapping[str, str | Function] | None = None,
    scores: Path | None = None,
    scratch: Path | None = None,
    options: WatchOptions = DEFAULTS,
) -> WatchResult:
    """Score each committed checkpoint once. Several processes may do that for one run at the same time.

    Args:
        folder: a run's folder, also of a Trainer or of Lightning, or an address on a mirror.
        score: a command with `{checkpoint}` in it, `package.module:function`, or a function. It gets the path of a
            checkpoint and gives metrics: the last line of JSON that it prints, or a mapping that it returns.
        sets: what else is scored, by name: a command or function of its own, or data for that of `score`, which gets
            it for `{set}`, or as the second argument. Without data the set of `score` is "task".
        scores: the folder where `scores.jsonl` lies and that all watchers of the run share; the run's own by default.
        scratch: where checkpoints of a mirror lie while they are scored.
        options: how it works.

    Raises:
        ConfigError: this cannot work.
        CouldNotLookError: the folder or the mirror cannot be read, or scores cannot be written.
    """
    place = place_of(str(folder))
    commands, functions = _commands(score, sets or {})
    if isinstance(place, Address):
        if scores is None:
            raise ConfigError(
                f"{place}: say by --scores FOLDER where the scores go; watchers that share it share the work"
            )
        if options.hold_bytes:
            raise ConfigError(
                f"{place}: what lies on a mirror cannot be held back from its retention; leave --hold out"
            )
    else:
        _warn_of_plain_ones(place)
    shared = scores if scores is not None else Path(str(place))
    if isinstance(place, Path) and not place.exists():
        if options.until == "once":
            raise CouldNotLookError(f"{place}: there is no such folder")
        logger.warning("%s is not there yet", place)
    try:
        if scores is not None:
            make_folders(scores)
        return Watcher(place_for(place, scratch), shared, commands, options, functions).run()
    except OSError as error:
        if isinstance(error, KeepstepError):
            raise
        raise CouldNotLookError(f"cannot keep scores in {shared}: {error}; --scores names another folder") from error


def _commands(
    score: str | Function | None, sets: Mapping[str, str | Function]
) -> tuple[tuple[ScoreCommand, ...], dict[str, Function]]:
    """Commands for all sets; what is scored by a function of this process has none in it."""
    for name in sets:
        if not is_set_name(name):
            raise ConfigError(f"{name!r}: a set's name has letters, digits, dots, dashes and underscores")
    texts = {name: value for name, value in sets.items() if isinstance(value, str)}
    functions = {name: value for name, value in sets.items() if not isinstance(value, str)}
    if score is None or isinstance(score, str):
        # Functions alone need no command.
        named = parse_commands(score, texts) if score is not None or texts or not functions else ()
    else:
        own, data = split_sets(texts, takes_data=False)
        scored = [ScoreCommand(name, data=value) for name, value in data.items()] or [ScoreCommand(DEFAULT_SET)]
        named = (*scored, *(parse_commands(None, own) if own else ()))
        functions = {**{command.set: score for command in scored}, **functions}
    known = {command.set for command in named}
    if not callable(score) and (twice := known & functions.keys()):
        raise ConfigError(f"the set {min(twice)} has two scorers: that of all, and one of its own")
    if callable(score) and DEFAULT_SET in sets and not data:
        raise ConfigError(f"the set {DEFAULT_SET} has two scorers: that of all, and one of its own")
    return (*named, *(ScoreCommand(name) for name in functions if name not in known)), functions


def _warn_of_plain_ones(folder: Path) -> None:
    plain = [
        one.path.name
        for one in survey(folder, layout.TRAINER).checkpoints
        if one.found.condition is Condition.INCOMPLETE and one.manifest is None
    ]
    if plain:
        logger.warning(
            "%s and %d more have no manifest, so nobody can tell whether they are complete, and they are not scored: "
            "keepstep adopt %s",
            plain[0],
            len(plain) - 1,
            folder,
        )
