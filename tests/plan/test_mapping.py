from collections.abc import Mapping

import pytest

from keepstep.config.mapper_file import parse_mapper
from keepstep.errors import ConfigError
from keepstep.plan.mapping import MappingPlan, TensorSpec
from keepstep.plan.mapping_inverse import invert
from keepstep.plan.mapping_steps import plan_mapping

Shapes = Mapping[str, tuple[int, ...]]


def plan(shapes: Shapes, *steps: dict[str, object], dtype: str = "float32") -> MappingPlan:
    specs = {name: TensorSpec(shape, dtype) for name, shape in shapes.items()}
    return plan_mapping(parse_mapper({"steps": steps}).steps, specs)


def outputs(shapes: Shapes, *steps: dict[str, object]) -> dict[str, tuple[int, ...]]:
    return {name: spec.shape for name, spec in plan(shapes, *steps).names.items()}


def problems(shapes: Shapes, *steps: dict[str, object]) -> list[str]:
    with pytest.raises(ConfigError) as error:
        plan(shapes, *steps)
    return str(error.value).splitlines()


def rename(old: str, new: str) -> dict[str, object]:
    return {"kind": "rename", "names": {old: new}}


CONCATENATE = {"kind": "concatenate", "take": ["{i}.q", "{i}.k"], "give": "{i}.qk"}


@pytest.mark.parametrize(
    ("shapes", "step", "expected"),
    [
        ({"a": (2, 3)}, rename("a", "b"), {"b": (2, 3)}),
        ({"a.0": (2,), "a.1": (3,)}, rename("a.{i}", "b.{i}.w"), {"b.0.w": (2,), "b.1.w": (3,)}),
        ({"a": (2,)}, {"kind": "keep", "names": "a"}, {"a": (2,)}),
        ({"a": (2,), "b": (3,)}, {"kind": "select", "names": "a"}, {"a": (2,)}),
        ({"a": (2, 3, 5)}, {"kind": "transpose", "names": "a", "dims": [0, -1]}, {"a": (5, 3, 2)}),
        ({"a": (8, 3)}, {"kind": "permute_heads", "names": "a", "heads": 2, "to": "interleaved"}, {"a": (8, 3)}),
        ({"0.q": (2, 3), "0.k": (2, 3), "1.q": (1, 3), "1.k": (1, 3)}, CONCATENATE, {"0.qk": (4, 3), "1.qk": (2, 3)}),
        ({"0.q": (2, 3), "0.k": (2, 5)}, {**CONCATENATE, "dim": -1, "sizes": [3, 5]}, {"0.qk": (2, 8)}),
        (
            {"a": (5, 2)},
            {"kind": "split", "take": "a", "give": ["b", "c"], "sizes": [1, 4]},
            {"b": (1, 2), "c": (4, 2)},
        ),
        ({"a": (2, 6)}, {"kind": "chunk", "take": "a", "give": ["b", "c"], "dim": 1}, {"b": (2, 3), "c": (2, 3)}),
        ({"a.1": (2, 3), "a.0": (2, 3)}, {"kind": "stack", "take": "a.{e}", "give": "a", "dim": -1}, {"a": (2, 3, 2)}),
        ({"a": (2, 3)}, {"kind": "unstack", "take": "a", "give": "a.{e}", "dim": 0}, {"a.0": (3,), "a.1": (3,)}),
    ],
)
def test_what_a_step_makes_of_shapes_and_back(shapes: Shapes, step: dict[str, object], expected: Shapes) -> None:
    made = plan(shapes, step)
    assert {name: spec.shape for name, spec in made.names.items()} == expected
    if step["kind"] != "select":
        back = plan_mapping(invert(parse_mapper({"steps": [step]}).steps), made.names)
        assert {name: spec.shape for name, spec in back.names.items()} == shapes


def test_a_cast_changes_the_dtype_and_nothing_else() -> None:
    made = plan({"a": (2, 3)}, {"kind": "cast", "names": "a", "dtype": "bfloat16"})
    assert made.names == {"a": TensorSpec((2, 3), "bfloat16")}


SPLIT = {"kind": "split", "take": "a", "give": ["b", "c"], "sizes": [1, 4]}
STACK = {"kind": "stack", "take": "a.{e}", "give": "a"}


@pytest.mark.parametrize(
    ("shapes", "step", "expected"),
    [
        ({"b": (1,)}, rename("a", "b"), ["a is missing", "b is made twice"]),
        ({"a": (1,), "c": (1,)}, rename("a", "b"), ["c is unread"]),
        ({"a": (1,), "b": (1,)}, rename("a", "b"), ["b is made twice"]),
        ({"a": (1,)}, rename("a.{i}", "b.{i}"), ["no name matches a.{i}", "a is unread"]),
        ({"a": (1,)}, {"kind": "keep", "names": ["a", "{x}"]}, ["a is taken twice"]),
        ({"0.q": (2,), "0.k": (2,), "1.q": (2,)}, CONCATENATE, ["1.k is missing"]),
        ({"0.q": (2,), "0.k": (3,)}, CONCATENATE, ["0.q, 0.k: lengths are [2, 3], without sizes all must be equal"]),
        ({"0.q": (2,), "0.k": (3,)}, {**CONCATENATE, "sizes": [3, 2]}, ["lengths are [2, 3], declared is [3, 2]"]),
        ({"0.q": (2, 1), "0.k": (2, 2)}, CONCATENATE, ["differ in dimension 0 alone"]),
        ({"a": (6,)}, SPLIT, ["a: sizes [1, 4] add up to 5, its length is 6"]),
        ({"a": (5,)}, {**SPLIT, "dim": 1}, ["a: dimension 1 of 1 does not exist"]),
        ({"a": (5,)}, {"kind": "chunk", "take": "a", "give": ["b", "c"]}, ["5 does not divide into 2"]),
        ({"a.0": (2,), "a.2": (2,)}, STACK, ["a.1 is missing"]),
        ({"a.0": (2,), "a.1": (2,)}, {**STACK, "count": 3}, ["a.2 is missing"]),
        ({"a.0": (2,), "a.1": (2,)}, {**STACK, "count": 1}, ["a.1: a takes 1 tensors"]),
        ({"a.0": (2,), "a.1": (3,)}, STACK, ["only equal shapes and dtypes stack, not float32[2], float32[3]"]),
        ({"a.0": (2,), "a.01": (2,)}, STACK, ["a.01: {e} counts what is stacked, and 01 is no number"]),
        ({"a": (2,)}, {"kind": "unstack", "take": "a", "give": "a.{e}", "count": 3}, ["2 are stacked in it"]),
        ({"a": (2,)}, {"kind": "transpose", "names": "a"}, ["a: dimension 1 of 1 does not exist"]),
        ({"a": (6,)}, {"kind": "permute_heads", "names": "a", "heads": 2, "to": "interleaved"}, ["6 rows are not 2"]),
        ({"a": (6,)}, {"kind": "cast", "names": "a", "dtype": "int8", "source": "int64"}, ["it is float32, declared"]),
        (
            {"a": (1,)},
            {"kind": "scope", "prefix": "m.", "steps": [rename("a", "b")]},
            ["no name begins with m.", "a is"],
        ),
    ],
)
def test_what_does_not_fit_gets_one_line_each(shapes: Shapes, step: dict[str, object], expected: list[str]) -> None:
    lines = problems(shapes, step)
    assert len(lines) == len(expected), lines
    assert all(words in line for words, line in zip(expected, lines, strict=True)), lines


def test_all_problems_of_all_steps_are_told_and_none_that_only_follows() -> None:
    lines = problems(
        {"0.q": (2,), "x": (3,), "y": (1,)},
        CONCATENATE,
        rename("0.qk", "z"),
        {"kind": "transpose", "names": "z"},
        {"kind": "chunk", "take": "x", "give": ["x1", "x2"]},
        {"kind": "keep", "names": ["x1", "x2"]},
    )
    assert [line.split(":")[0] for line in lines] == ["steps.0 concatenate", "steps.3 chunk", "y is unread"]


def test_a_long_list_of_problems_ends_in_a_count() -> None:
    lines = problems({f"{i}": (1,) for i in range(30)}, {"kind": "parallel", "steps": [rename("a", "b")]})
    assert len(lines) == 21
    assert lines[-1] == "and 11 more problems"


@pytest.mark.parametrize("count", [None, 3, 999_999_999])
def test_a_far_number_in_a_stack_does_not_list_all_that_lack(count: int | None) -> None:
    lines = problems({"a.0": (1,), "a.999999998": (1,)}, {**STACK, "count": count})
    assert "steps.0 stack: a.1 is missing" in lines
    assert len(lines) < 6
    assert any("a takes 3 tensors" in line for line in lines) == (count == 3)


def test_a_number_of_any_length_is_looked_at() -> None:
    (line,) = problems({"a." + "9" * 5000: (1,)}, STACK)
    assert "counts what is stacked" in line


def test_in_parallel_no_step_sees_what_another_gives() -> None:
    swap = {"kind": "parallel", "steps": [rename("a", "b"), rename("b", "a")]}
    assert outputs({"a": (1,), "b": (2,)}, swap) == {"b": (1,), "a": (2,)}


def test_in_parallel_two_steps_must_not_give_one_name() -> None:
    steps = {"kind": "parallel", "steps": [rename("a", "c"), rename("b", "c")]}
    assert problems({"a": (1,), "b": (1,)}, steps) == ["steps.0 parallel: c is made twice"]


def test_in_parallel_select_picks_and_leaves_the_rest_to_the_others() -> None:
    steps = {"kind": "parallel", "steps": [{"kind": "select", "names": "a"}, rename("b", "c")]}
    assert outputs({"a": (1,), "b": (2,)}, steps) == {"a": (1,), "c": (2,)}


def test_in_parallel_one_tensor_may_be_read_twice_which_cannot_be_undone() -> None:
    twice = {"kind": "parallel", "steps": [rename("a", "b"), {"kind": "keep", "names": "a"}]}
    made = plan({"a": (1,)}, twice)
    assert set(made.names) == {"a", "b"}
    with pytest.raises(ConfigError, match="a is made twice"):
        plan_mapping(invert(parse_mapper({"steps": [twice]}).steps), made.names)


def test_a_scope_hides_its_prefix_and_gives_another_to_what_it_makes() -> None:
    scope = {"kind": "scope", "prefix": "m.{i}.", "to": "n.{i}.", "steps": [rename("a", "x"), rename("x", "b")]}
    shapes = {"m.0.a": (1,), "m.10.a": (2,), "a": (3,), "m.0.c": (4,)}
    rest = {"kind": "keep", "names": ["a", "m.0.c"]}
    assert outputs(shapes, scope, rest) == {"n.0.b": (1,), "n.10.b": (2,), "a": (3,), "m.0.c": (4,)}
    assert problems(shapes, scope) == [
        "a is unread: no step takes it",
        "m.0.c is unread: no step takes it",
    ]


def test_a_problem_in_a_scope_names_the_prefix_and_the_place() -> None:
    scope = {"kind": "scope", "prefix": "m.{i}.", "steps": [rename("a", "b")]}
    assert problems({"m.0.a": (1,), "m.1.b": (1,)}, scope)[0] == "steps.0.0 rename under m.1.: a is missing"


def test_scopes_that_lead_to_one_name_clash() -> None:
    scope = {"kind": "scope", "prefix": "{x}.{i}.", "to": "{i}.{x}.", "steps": [rename("{rest*}", "{rest*}")]}
    assert outputs({"a.0.w": (1,)}, scope) == {"0.a.w": (1,)}
    clash = [{"kind": "scope", "prefix": one, "to": "m.", "steps": [rename("w", "w")]} for one in ("a.", "b.")]
    assert problems({"a.w": (1,), "b.w": (1,)}, *clash) == ["steps.1 scope: m.w is made twice"]


def test_a_graph_finds_the_order_of_its_steps() -> None:
    steps = [rename("c.{i}", "d.{i}"), rename("a.{i}", "b.{i}"), rename("b.{i}", "c.{i}")]
    graph = {"kind": "graph", "steps": steps}
    assert outputs({"a.0": (1,)}, graph) == {"d.0": (1,)}
    assert problems({"a.0": (1,)}, {"kind": "sequence", "steps": steps}) != []
    back = invert(parse_mapper({"steps": [graph]}).steps)
    assert list(plan_mapping(back, {"d.0": TensorSpec((1,), "int8")}).names) == ["a.0"]


def test_a_graph_that_goes_in_a_circle_is_refused_by_its_steps() -> None:
    graph = {"kind": "graph", "steps": [rename("x", "y"), rename("a", "b"), rename("b", "a")]}
    assert problems({"a": (1,), "x": (1,)}, graph) == [
        "steps.0 graph: steps need each other in a circle: 1 rename > 2 rename > 1 rename"
    ]


def test_a_plan_tells_inputs_and_steps_of_each_output() -> None:
    made = plan(
        {"0.k": (2, 3), "0.q": (2, 3), "w": (1,)},
        CONCATENATE,
        {"kind": "transpose", "names": "{i}.qk"},
        {"kind": "drop", "names": "w"},
    )
    (one,) = made.tensors
    assert one.inputs == ("0.q", "0.k")
    assert one.steps == ("steps.0 concatenate", "steps.1 transpose")
    assert str(made) == ("0.qk float32[3, 4] <- 0.q, 0.k [steps.0 concatenate > steps.1 transpose]\nw is dropped")


def test_what_is_dropped_later_on_is_never_read() -> None:
    made = plan(
        {"a": (4,), "b": (4,)}, rename("a", "c"), {"kind": "keep", "names": "b"}, {"kind": "drop", "names": "c"}
    )
    assert [one.name for one in made.sources] == ["b"]
    assert made.dropped == ("a",)
    assert [one.step.kind for one in made.operations] == ["keep"]


def test_groups_have_no_tensor_in_common() -> None:
    made = plan(
        {"0.q": (2,), "0.k": (2,), "1.q": (2,), "1.k": (2,), "x": (2,)},
        CONCATENATE,
        {"kind": "chunk", "take": "0.qk", "give": ["0.a", "0.b"]},
        {"kind": "keep", "names": "x"},
    )
    assert [[one.name for one in group.outputs] for group in made.groups] == [["1.qk"], ["0.a", "0.b"], ["x"]]
    assert [len(group.operations) for group in made.groups] == [1, 2, 1]
