from keepstep.plan.pace import straggler
from keepstep.plan.room import Need, decide_room

GIB = 1 << 30


def test_ranks_of_one_host_share_its_memory() -> None:
    assert decide_room([Need("a", 4 * GIB, 10 * GIB), Need("b", 4 * GIB, 10 * GIB)]).fits
    room = decide_room([Need("a", 5 * GIB, 10 * GIB), Need("a", 5 * GIB, 10 * GIB), Need("b", 1, 100 * GIB)])
    assert not room.fits
    assert room.reason == "host buffers of 10.00 GiB on a, where 10.00 GiB are available"


def test_some_memory_stays_free_and_an_unknown_amount_is_no_refusal() -> None:
    assert not decide_room([Need("a", 95, 100)]).fits
    assert decide_room([Need("a", 90, 100)]).fits
    assert decide_room([Need("a", 1 << 50, None)]).fits


def test_a_rank_that_holds_the_others_up_is_named() -> None:
    assert straggler([1.0, 1.1, 5.0, 1.2]) == 2
    assert straggler([1.0, 1.1, 1.9]) is None
    assert straggler([0.01, 0.5]) is None  # too little to speak of
    assert straggler([9.0]) is None
