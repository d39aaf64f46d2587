"""What `--score` and `--set` mean."""

import pytest

from keepstep.errors import ConfigError
from keepstep.plan.score_command import parse_commands, parse_sets

COMMAND = "python 'my evaluate.py' --at={checkpoint} --step {step}"


def filled(score: str | None, **sets: str) -> dict[str, tuple[str, ...]]:
    return {one.set: one.fill("/runs/a b/save-7", 7, "/tmp/out") for one in parse_commands(score, sets)}


def test_a_command_is_split_without_a_shell_and_filled_part_by_part() -> None:
    assert filled(COMMAND) == {"task": ("python", "my evaluate.py", "--at=/runs/a b/save-7", "--step", "7")}


def test_what_comes_from_a_path_is_no_part_of_the_command_and_is_not_filled_again() -> None:
    (one,) = parse_commands("score {checkpoint} {output} '{\"a\": {}}' $HOME; rm", {})
    assert one.fill("/x; rm {step} {output}", 7, "/o") == (
        "score",
        "/x; rm {step} {output}",
        "/o",
        '{"a": {}}',
        "$HOME;",
        "rm",
    )
    assert one.writes_file


def test_a_set_is_data_for_the_command_or_a_command_of_its_own() -> None:
    assert filled("score {checkpoint} {set}", canary="data/canary.jsonl", main="x=y") == {
        "canary": ("score", "/runs/a b/save-7", "data/canary.jsonl"),
        "main": ("score", "/runs/a b/save-7", "x=y"),
    }
    assert filled("score {checkpoint}", canary="other {checkpoint}") == {
        "task": ("score", "/runs/a b/save-7"),
        "canary": ("other", "/runs/a b/save-7"),
    }
    assert filled(None, canary="other {checkpoint}") == {"canary": ("other", "/runs/a b/save-7")}
    assert filled("score {checkpoint} {set}") == {"task": ("score", "/runs/a b/save-7", "task")}


def test_functions() -> None:
    first, second = parse_commands("pkg.scores:accuracy", {"canary": "pkg.scores:Canary.score"})
    assert (first.set, first.function, first.parts) == ("task", "pkg.scores:accuracy", ())
    assert (second.set, second.function) == ("canary", "pkg.scores:Canary.score")
    assert parse_commands("score {checkpoint} {set}", {"a": "glue:mrpc"})[0].data == "glue:mrpc"
    (data,) = parse_commands("pkg.scores:accuracy", {"canary": "data.jsonl"})
    assert (data.set, data.function, data.data) == ("canary", "pkg.scores:accuracy", "data.jsonl")


@pytest.mark.parametrize(
    ("score", "sets", "told"),
    [
        (None, {}, "say how to score"),
        (None, {"a": "data"}, "say how to score"),
        ("score", {}, "no {checkpoint}"),
        ("", {}, "no {checkpoint}"),
        ("score '{checkpoint}", {}, "cannot be split"),
        ("score {checkpoint}", {"a": "data"}, "no {set}"),
        ("score {checkpoint}", {"task": "other {checkpoint}"}, "is another"),
        ("score {checkpoint} {set}", {"a/b": "data"}, "letters"),
    ],
)
def test_what_cannot_work_is_refused_with_what_to_write(score: str | None, sets: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parse_commands(score, sets)


def test_pairs() -> None:
    assert parse_sets(["a=1", "b=x=y"]) == {"a": "1", "b": "x=y"}
    for texts in (["a"], ["a="], ["a=1", "a=2"]):
        with pytest.raises(ConfigError):
            parse_sets(texts)
