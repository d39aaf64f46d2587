"""Each thing is written once, by a rank that holds it, and loads are even."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from keepstep.plan.sharing import PLACE_SIZE, Listing, assign, share_common


def listing(held: dict[int, int]) -> Listing:
    return Listing(b"".join(n.to_bytes(PLACE_SIZE, "big") for n in held), array("q", held.values()))


RANKS = st.lists(st.sets(st.integers(0, 12)), min_size=1, max_size=5)


@given(RANKS, st.lists(st.integers(0, 9), min_size=13, max_size=13))
def test_each_thing_has_one_writer_and_all_holders_know_each_other(ranks: list[set[int]], sizes: list[int]) -> None:
    held = [{thing: sizes[thing] for thing in sorted(own)} for own in ranks]
    found = assign([listing(own) for own in held], [0] * len(ranks))
    writers: dict[int, list[int]] = {}
    for rank, (own, assignment) in enumerate(zip(held, found, strict=True)):
        for thing, writes, group in zip(own, assignment.writes, assignment.group, strict=True):
            holders = tuple(other for other, theirs in enumerate(held) if thing in theirs)
            assert (assignment.groups[group] if group >= 0 else (rank,)) == holders
            if writes:
                writers.setdefault(thing, []).append(rank)
            if writes and not sizes[thing]:
                assert rank == holders[0]
    assert all(len(own) == 1 for own in writers.values())
    assert set(writers) == set().union(*ranks)


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 6))
def test_what_all_hold_is_divided_evenly_and_small_things_go_to_the_first(sizes: list[int], ranks: int) -> None:
    writers, loads = share_common(sizes, ranks)
    assert all(writer == 0 for writer, size in zip(writers, sizes, strict=True) if not size)
    for rank in range(ranks):
        assert loads[rank] == sum(size for writer, size in zip(writers, sizes, strict=True) if writer == rank)
    assert max(loads) - min(loads) <= max(sizes, default=0)


def test_who_writes_much_already_gets_less() -> None:
    both = {1: 5, 2: 5, 3: 5, 4: 5}
    first, second = assign([listing(both), listing(both)], [100, 0])
    assert (sum(first.writes), sum(second.writes)) == (0, 4)
