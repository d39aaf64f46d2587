"""Records are compared field by field, items by kind."""

import pytest

from keepstep.plan.difference import Field, Kind, RecordError, Tally, compare_fields, flatten, match, tally


def test_flattening() -> None:
    record = {"seed": 1, "config": {"mesh": {"dp": 2}, "phases": [{"to": 1.0}, 5], "sizes": [1, 2], "none": {}}}
    assert flatten(record) == {
        "seed": "1",
        "config.mesh.dp": "2",
        "config.phases.0.to": "1.0",
        "config.phases.1": "5",
        "config.sizes": "[1, 2]",
        "config.none": "{}",
    }
    assert flatten({}) == {}
    assert flatten({"a.b": 1, "a": {"b": 2}, "": 3}) == {'"a.b"': "1", "a.b": "2", '""': "3"}


def test_a_record_that_was_made_to_take_memory_is_refused() -> None:
    deep: dict[str, object] = {}
    for _ in range(70):
        deep = {"x": deep, "y": 1}
    for record in (deep, {"x" * 2000: 1}, {str(n): n for n in range(100_002)}):
        with pytest.raises(RecordError, match="too large or too deep"):
            flatten(record)


def test_fields_that_differ() -> None:
    a, b = flatten({"same": 1, "one": 1, "gone": None, "t": True}), flatten({"same": 1, "one": 1.0, "new": 2, "t": 1})
    assert compare_fields(a, b) == (
        Field("gone", "null", None),
        Field("new", None, "2"),
        Field("one", "1", "1.0"),
        Field("t", "true", "1"),
    )


def test_matching_and_counting() -> None:
    def kind(key: str, dtype: str = "float32", shape: tuple[int, ...] = (2,)) -> Kind:
        return Kind(key, dtype, shape, 8)

    a = {k: kind(k) for k in ("model.w", "model.v", "model.old", "model.shape", "rng")}
    b = {k: kind(k) for k in ("model.v", "model.w", "optimizer.new", "rng")} | {
        "model.shape": kind("model.shape", shape=(3,)),
        "rng": kind("rng", dtype=""),
    }
    found = match(a, b)
    assert found.both == ("model.w", "model.v")
    assert [k.key for k in found.added] == ["optimizer.new"]
    assert [k.key for k in found.removed] == ["model.old"]
    assert [(c.key, c.a.shape, c.b.shape) for c in found.changed] == [("model.shape", (2,), (3,)), ("rng", (2,), (2,))]
    assert tally(found, ["model.v"]) == (
        Tally("model", equal=1, different=1, added=0, removed=1, changed=1),
        Tally("optimizer", equal=0, different=0, added=1, removed=0, changed=0),
        Tally("rng", equal=0, different=0, added=0, removed=0, changed=1),
    )
