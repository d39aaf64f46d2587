"""The commands of a watcher: which set is scored by which, and how a checkpoint is put into them."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keepstep.errors import ConfigError
from keepstep.plan.scores import DEFAULT_SET, is_set_name

CHECKPOINT, STEP, SET, OUTPUT = "{checkpoint}", "{step}", "{set}", "{output}"
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", re.ASCII)


@dataclass(frozen=True)
class ScoreCommand:
    """How one set is scored.

    Attributes:
        set: its name.
        parts: of the command; what stands in braces is filled in for each checkpoint. Empty for a function.
        function: `package.module:name`, where that is what scores. Empty for a command.
        data: what the set was given as; fills in `{set}`, as its name does without it.
    """

    set: str
    parts: tuple[str, ...] = ()
    function: str = ""
    data: str = ""

    def fill(self, checkpoint: str, step: int, output: str) -> tuple[str, ...]:
        """The command for one checkpoint. Braces of any other kind are left as they are."""
        values = {CHECKPOINT: checkpoint, STEP: str(step), SET: self.data or self.set, OUTPUT: output}
        pattern = re.compile("|".join(map(re.escape, values)))
        return tuple(pattern.sub(lambda match: values[match[0]], part) for part in self.parts)

    @property
    def writes_file(self) -> bool:
        """Whether it is to write its metrics into a file."""
        return any(OUTPUT in part for part in self.parts)


def parse_commands(score: str | None, sets: Mapping[str, str]) -> tuple[ScoreCommand, ...]:
    """What `--score` and `--set` mean.

    A set's value is a command of its own where it has `{checkpoint}` in it or is a function; else it is what `{set}`
    stands for in the command of `--score`, or what a function gets as its second argument.

    Raises:
        ConfigError: it cannot work; the message says what to write.
    """
    for name in sets:
        if not is_set_name(name):
            raise ConfigError(f"--set {name}=...: a set's name has letters, digits, dots, dashes and underscores")
    own, data = split_sets(sets, takes_data=score is not None and SET in score)
    commands = []
    if score is None:
        if data or not own:
            raise ConfigError('say how to score: --score "python evaluate.py {checkpoint}", or package.module:function')
    elif data:
        commands = [_command(name, score, value) for name, value in data.items()]
    elif DEFAULT_SET in own:
        raise ConfigError(f"--score is the command of the set {DEFAULT_SET}, and --set {DEFAULT_SET}=... is another")
    else:
        commands = [_command(DEFAULT_SET, score, "")]
    return (*commands, *(_command(name, value, "") for name, value in own.items()))


def split_sets(sets: Mapping[str, str], *, takes_data: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Sets with a command or function of their own, and those that are data for that of all.

    Where that takes data, `glue:mrpc` is data, and no function.
    """
    own = {
        name: value
        for name, value in sets.items()
        if CHECKPOINT in value or (not takes_data and _FUNCTION.fullmatch(value))
    }
    return own, {name: value for name, value in sets.items() if name not in own}


def parse_sets(texts: Sequence[str]) -> dict[str, str]:
    """`name=value` pairs. Raises ConfigError where one is none, or a name comes twice."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not value:
            raise ConfigError(f"--set {text}: write --set name=value")
        if name in found:
            raise ConfigError(f"--set {name}=... is given twice")
        found[name] = value
    return found


def _command(name: str, text: str, data: str) -> ScoreCommand:
    if _FUNCTION.fullmatch(text):
        return ScoreCommand(name, function=text, data=data)
    try:
        parts = tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(f"the command of the set {name} cannot be split: {error}: {text}") from None
    if not any(CHECKPOINT in part for part in parts):
        raise ConfigError(f"the command of the set {name} has no {CHECKPOINT}, so it cannot know what to score: {text}")
    if data and not any(SET in part for part in parts):
        raise ConfigError(
            f"the command has no {SET}, so it cannot know that it is to score {name}={data}: {text}. Or give the set "
            f'a command of its own: --set {name}="python other.py {CHECKPOINT}"'
        )
    return ScoreCommand(name, parts, data=data)
