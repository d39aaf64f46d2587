from hypothesis import given
from hypothesis import strategies as st

from keepstep.plan.hosts import hosts_of


def test_the_peer_is_at_the_same_place_on_the_next_host() -> None:
    hosts = hosts_of(["a", "a", "b", "b", "c", "c"])
    assert hosts.ranks == ((0, 1), (2, 3), (4, 5))
    assert [hosts.peer(rank) for rank in range(6)] == [2, 3, 4, 5, 0, 1]
    assert hosts.leaders == (0, 2, 4)


def test_ranks_need_not_be_dealt_out_in_order() -> None:
    hosts = hosts_of(["b", "a", "b", "a"])
    assert hosts.names == ("b", "a")
    assert [hosts.peer(rank) for rank in range(4)] == [1, 0, 3, 2]
    assert [rank for rank in range(4) if hosts.leads(rank)] == [0, 1]


def test_uneven_hosts_wrap() -> None:
    hosts = hosts_of(["a", "a", "a", "b"])
    assert [hosts.peer(rank) for rank in range(4)] == [3, 3, 3, 0]
    assert hosts.senders(3) == (0, 1, 2)


def test_a_lone_host_has_no_peer() -> None:
    assert hosts_of(["a", "a"]).peer(0) is None


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=9))
def test_a_copy_lies_on_another_host_and_everyone_knows_of_it(names: list[str]) -> None:
    hosts = hosts_of(names)
    for rank, name in enumerate(names):
        assert hosts.names[hosts.of(rank)] == name
        peer = hosts.peer(rank)
        assert (peer is None) == (len(set(names)) == 1)
        if peer is not None:
            assert names[peer] != name
            assert rank in hosts.senders(peer)
