import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keepstep.config.pattern import can_overlap, name_pattern


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("a.b", "a.b", {}),
        ("a.b", "axb", None),
        ("a.{layer}.b", "a.10.b", {"layer": "10"}),
        ("a.{layer}.b", "a..b", None),
        ("a.{layer}.b", "a.1.2.b", None),
        ("a.{rest*}", "a.1.2.b", {"rest": "1.2.b"}),
        ("{x}.{x}", "1.1", {"x": "1"}),
        ("{x}.{x}", "1.2", None),
        ("w{i}_{part}", "w3_q", {"i": "3", "part": "q"}),
    ],
)
def test_what_a_pattern_matches(pattern: str, name: str, expected: dict[str, str] | None) -> None:
    assert name_pattern(pattern).match(name) == expected
    if expected is not None:
        assert name_pattern(pattern).fill(expected) == name


def test_a_prefix_ends_where_the_pattern_does() -> None:
    found = name_pattern("layers.{i}.").match_prefix("layers.12.mlp.3.weight")
    assert found == ("layers.12.", {"i": "12"})
    assert name_pattern("layers.{i}.").match_prefix("norm.weight") is None


@pytest.mark.parametrize("text", ["a.{", "a.}", "{}", "{1}", "{a b}", "{a}.{a*}", "{{a}}"])
def test_braces_that_are_no_placeholder_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"placeholder|cannot both"):
        name_pattern(text)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a.{i}", "a.7", True),
        ("a.{i}", "a.7.b", False),
        ("a.{i*}", "a.7.b", True),
        ("a.{i}.q", "{x*}.q", True),
        ("a.{i}.q", "{x*}.k", False),
        ("{a}1", "2{b}", True),
        ("{a}", "", False),
    ],
)
def test_whether_two_patterns_have_a_name_in_common(first: str, second: str, expected: bool) -> None:
    assert can_overlap(first, second) == can_overlap(second, first) == expected


pieces = st.lists(st.sampled_from(["a", "b", ".", "{x}", "{y*}"]), max_size=5).map("".join)
patterns = pieces.filter(lambda text: text.count("{x}") < 2 and text.count("{y*}") < 2)


@given(patterns, patterns, st.text("ab.", max_size=6))
@example("{x}.b", "a{y*}", "a.b")
def test_patterns_that_share_a_name_overlap(first: str, second: str, name: str) -> None:
    if name_pattern(first).match(name) is not None and name_pattern(second).match(name) is not None:
        assert can_overlap(first, second)
