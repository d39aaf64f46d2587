from keepstep.testing.faults.crash_states import ROOT, Make, Name, Remove, Sync, Write, crash_states


def contents(operations: list[object], limit: int = 10_000) -> set[tuple[tuple[str, bytes | None], ...]]:
    """What may lie there after all of these operations."""
    states = [state for state in crash_states(operations, limit) if state.done == len(operations)]  # type: ignore[arg-type]
    return {tuple(sorted(state.content.items())) for state in states}


WRITTEN = [Make(ROOT, "a", 1), Write(1, 0, b"data")]


def test_a_name_needs_a_sync_of_its_folder_and_bytes_one_of_the_file() -> None:
    found = contents(WRITTEN)
    assert () in found
    assert (("a", b""),) in found
    assert (("a", b"data"),) in found
    assert contents([*WRITTEN, Sync(1)]) == {(), (("a", b"data"),)}
    assert (("a", b""),) in contents([*WRITTEN, Sync(ROOT)])
    assert contents([*WRITTEN, Sync(1), Sync(ROOT)]) == {(("a", b"data"),)}


def test_bytes_that_were_not_synced_may_be_there_in_part_or_as_zeros() -> None:
    found = {dict(content)["a"] for content in contents([*WRITTEN, Sync(ROOT)], 5000)}
    assert b"data" in found
    assert any(data and data == bytes(len(data)) for data in found)
    assert any(data and b"data".startswith(data) and len(data) < 4 for data in found)


def test_a_rename_has_happened_or_has_not() -> None:
    operations = [*WRITTEN, Sync(1), Sync(ROOT), Name(ROOT, "b", 1, (ROOT, "a"))]
    assert contents(operations) == {(("a", b"data"),), (("b", b"data"),)}
    assert contents([*operations, Sync(ROOT)]) == {(("b", b"data"),)}


def test_of_a_rename_between_folders_each_may_be_durable_without_the_other() -> None:
    folders = [Make(ROOT, "x", 2, True), Make(ROOT, "y", 3, True), Make(2, "a", 1), Write(1, 0, b"1"), Sync(1), Sync(2)]
    moved = [*folders, Sync(3), Sync(ROOT), Name(3, "b", 1, (2, "a"))]
    both = (("x", None), ("x/a", b"1"), ("y", None), ("y/b", b"1"))
    assert both in contents([*moved, Sync(3)])
    assert contents([*moved, Sync(3), Sync(2)]) == {(("x", None), ("y", None), ("y/b", b"1"))}


def test_a_folder_brings_what_is_durable_in_it_and_its_loss_hides_it() -> None:
    operations = [Make(ROOT, "f", 1, True), Make(1, "a", 2), Write(2, 0, b"1"), Sync(2), Sync(1)]
    assert contents(operations) == {(), (("f", None), ("f/a", b"1"))}


def test_a_removal_may_come_back() -> None:
    operations = [*WRITTEN, Sync(1), Sync(ROOT), Remove(ROOT, "a")]
    assert contents(operations) == {(), (("a", b"data"),)}


def test_an_overwritten_byte() -> None:
    operations = [*WRITTEN, Sync(1), Sync(ROOT), Write(1, 1, b"X")]
    assert {(("a", b"data"),), (("a", b"dXta"),)} <= contents(operations)


def test_states_are_at_most_as_many_as_asked_for_and_the_same_each_time() -> None:
    operations = [one for n in range(30) for one in (Make(ROOT, f"{n}", n + 1), Write(n + 1, 0, b"1"))]
    first = [(s.done, s.key) for s in crash_states(operations, 100, seed=1)]
    assert 50 <= len(first) <= 104
    assert first == [(s.done, s.key) for s in crash_states(operations, 100, seed=1)]
