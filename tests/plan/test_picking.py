import pytest

from keepstep.plan.picking import PickingError, pick, shown


def leaves(*tensors: str, values: tuple[str, ...] = ()) -> dict[tuple[str, ...], bool]:
    return {tuple(path.split("/")): path not in values for path in (*tensors, *values)}


def test_everything_where_nothing_is_wrapped() -> None:
    picked = pick(leaves("a.b", "model.c"), None)
    assert picked.paths == {"a.b": ("a.b",), "model.c": ("model.c",)}
    assert picked.left_out == ()


def test_what_lies_under_a_usual_name_and_what_is_left_out() -> None:
    picked = pick(leaves("state_dict/a.b", "optimizer/x", "optimizer/y", values=("epoch",)), None)
    assert picked.paths == {"a.b": ("state_dict", "a.b")}
    assert picked.left_out == ("optimizer", "epoch")


def test_a_tensor_with_a_usual_name_wraps_nothing() -> None:
    assert pick(leaves("model", "a"), None).paths == {"model": ("model",), "a": ("a",)}


def test_a_prefix_may_end_within_a_name() -> None:
    assert pick(leaves("net.body.a", "net.head"), "net.body").paths == {"a": ("net.body.a",)}
    assert pick(leaves("net/body.a", "x"), "net.body.").left_out == ("x",)


@pytest.mark.parametrize(
    ("given", "prefix", "text"),
    [
        (leaves("model/a", "state_dict/a"), None, "may be model or state_dict"),
        (leaves("a/b", "a.b"), None, "two of its tensors would have the name a.b"),
        (leaves("a", values=("b", "c")), None, "no tensors: b, c (--weights PREFIX"),
        (leaves(values=("b",)), None, "no tensors: b"),
        (leaves("a/b"), "c", "nothing under 'c'; there are a"),
        (leaves(values=("b",)), "c", "nothing under 'c'; there are no tensors at all"),
        ({}, None, "it holds no tensors"),
        ({("",): True}, None, "has no name"),
    ],
)
def test_what_cannot_be_told_is_said(given: dict[tuple[str, ...], bool], prefix: str | None, text: str) -> None:
    with pytest.raises(PickingError) as caught:
        pick(given, prefix)
    assert text in str(caught.value)


def test_long_lists_are_cut() -> None:
    assert shown([str(one) for one in range(7)]) == "0, 1, 2, 3, 4 and 2 more"
