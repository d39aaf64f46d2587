from keepstep.plan.resume import Condition, Found, Start, decide

COMPLETE, INCOMPLETE, DAMAGED = Condition.COMPLETE, Condition.INCOMPLETE, Condition.DAMAGED


def found(**conditions: Condition) -> list[Found]:
    return [Found(int(name[1:]), condition, "broken") for name, condition in conditions.items()]


def test_an_empty_folder_is_a_fresh_start() -> None:
    assert decide([]).start is Start.FRESH


def test_the_newest_complete_one_is_taken_and_newer_bad_ones_are_named() -> None:
    decision = decide(found(s5=COMPLETE, s10=COMPLETE, s15=DAMAGED, s20=INCOMPLETE, s3=DAMAGED))
    assert decision.start is Start.RESUME
    assert decision.candidates == (10, 5)
    assert [f.step for f in decision.ignored] == [20, 15]


def test_the_requested_step_and_no_other() -> None:
    assert decide(found(s5=COMPLETE, s10=COMPLETE), 5).candidates == (5,)
    missing = decide(found(s5=COMPLETE, s10=COMPLETE), 15)
    assert missing.start is Start.NOT_FOUND
    assert "10, 5" in missing.reason
    damaged = decide(found(s5=COMPLETE, s10=DAMAGED), 10)
    assert damaged.start is Start.NOT_FOUND
    assert "save-10 is damaged: broken" in damaged.reason


def test_what_never_was_committed_does_not_stand_against_a_fresh_start() -> None:
    decision = decide(found(s5=INCOMPLETE))
    assert decision.start is Start.FRESH
    assert [f.step for f in decision.ignored] == [5]


def test_what_was_committed_and_is_damaged_does() -> None:
    assert decide(found(s5=DAMAGED, s10=INCOMPLETE)).start is Start.NOTHING_GOOD
