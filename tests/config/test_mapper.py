from pathlib import Path

import pytest
from pydantic import ValidationError

from keepstep.config.mapper import KINDS, Concatenate, Rename, Stack
from keepstep.config.mapper_file import load_mapper, parse_mapper
from keepstep.errors import ConfigError

SELECT = {"kind": "select", "names": "a"}


def refusal(*steps: object) -> str:
    with pytest.raises(ConfigError) as error:
        parse_mapper({"steps": list(steps)})
    (line,) = str(error.value).splitlines()
    return line


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ({"kind": "renam", "names": {"a": "b"}}, ["steps.0.kind = 'renam'", "did you mean rename?", "unstack"]),
        ({"names": ["a"]}, ["steps.0: a step needs a kind"]),
        ({"kind": "keep", "names": ["a"], "nmaes": 1}, ["steps.0.keep.nmaes: unknown key", "did you mean names?"]),
        ({"kind": "keep"}, ["steps.0.keep.names: missing"]),
        ({"kind": "keep", "names": []}, ["steps.0.keep.names = []", "at least one"]),
        ({"kind": "keep", "names": "a.{"}, ["steps.0.keep.names.0 = 'a.{'", "a placeholder looks like"]),
        ({"kind": "rename", "names": {"a.{i}": "b"}}, ["a.{i} and b must have the same placeholders"]),
        ({"kind": "concatenate", "take": ["a"], "give": "b"}, ["take", "at least two names"]),
        ({"kind": "concatenate", "take": ["a", "a"], "give": "b"}, ["take", "a name twice"]),
        ({"kind": "concatenate", "take": ["a", "b"], "give": "c", "sizes": [1]}, ["2 names need as many sizes, not 1"]),
        ({"kind": "split", "take": "a", "give": ["b", "c"], "sizes": [1, 0]}, ["sizes.1 = 0"]),
        ({"kind": "stack", "take": "a", "give": "b"}, ["a must have the placeholders of b and one more"]),
        ({"kind": "unstack", "take": "a.{i}", "give": "b.{j}"}, ["b.{j} must have the placeholders of a.{i}"]),
        ({"kind": "cast", "names": "a", "dtype": "float31"}, ["steps.0.cast.dtype = 'float31'"]),
        ({"kind": "graph", "steps": [SELECT]}, ["steps.0.graph", "use drop"]),
        ({"kind": "graph", "steps": [{"kind": "sequence", "steps": [SELECT]}]}, ["steps.0.graph", "use drop"]),
        (
            {"kind": "scope", "prefix": "a.", "steps": [{"kind": "split", "take": "a", "give": ["b", "c"]}]},
            ["steps.0.scope.steps.0.split.sizes: missing"],
        ),
    ],
)
def test_a_step_that_cannot_be_gets_one_line(step: dict[str, object], words: list[str]) -> None:
    line = refusal(step)
    assert all(word in line for word in words), line


def test_a_file_is_read_with_all_kinds_of_steps_inside_of_others(tmp_path: Path) -> None:
    file = tmp_path / "mapper.yaml"
    file.write_text(
        "steps:\n"
        "- {kind: scope, prefix: 'm.{i}.', to: 'n.{i}.', steps: [{kind: rename, names: {a: b}}]}\n"
        "- {kind: parallel, steps: [{kind: stack, take: 'x.{e}', give: x}]}\n"
    )
    scope, parallel = load_mapper(file).steps
    assert scope.steps == (Rename(names={"a": "b"}),)  # type: ignore[union-attr]
    assert parallel.steps == (Stack(take="x.{e}", give="x"),)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- 1\n", "must hold a mapping with steps"),
        ("steps: [\n", "not valid YAML"),
        ("steps: []\n", "steps = []: must hold at least one"),
        ("steps:\n- {kind: rename, names: {a: b, a: c}}\n", "'a' stands twice"),
        ("stpes: []\nsteps: [{kind: keep, names: a}]\n", "stpes: unknown key; did you mean steps?"),
    ],
)
def test_a_file_that_is_no_mapper_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "mapper.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"mapper\.yaml: ") as error:
        load_mapper(file)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such mapper file"):
        load_mapper(tmp_path / "mapper.yaml")


def test_steps_are_frozen() -> None:
    with pytest.raises(ValidationError):
        Concatenate(take=("a", "b"), give="c").give = "d"  # type: ignore[misc]


def test_every_kind_of_step_is_listed_by_its_name() -> None:
    assert all(section.model_fields["kind"].default == kind for kind, section in KINDS.items())
    assert len(KINDS) == 18
