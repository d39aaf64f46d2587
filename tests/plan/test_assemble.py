from hypothesis import given
from hypothesis import strategies as st

from keepstep.plan.assemble import Version, choose, missing, plan_host_retention, plan_transfers
from keepstep.plan.manifest import FileRecord, Manifest

FILES = ("__0_0.distcp", "__0.index", "__1_0.distcp", "__1.index", ".metadata", "run.json")


def manifest_of(version: Version) -> Manifest:
    records = {name: FileRecord(len(name), "0") for name in FILES}
    return Manifest(version.step, version.attempt, 2, ("model",), records)


versions = st.builds(Version, st.integers(1, 6), st.integers(1, 3), st.sampled_from("xy"))
holdings_of_hosts = st.lists(
    st.dictionaries(versions, st.sets(st.sampled_from(FILES)), max_size=5), min_size=1, max_size=4
)
Holdings = list[dict[Version, set[str]]]


def manifests_of(holdings: Holdings) -> dict[Version, Manifest]:
    return {version: manifest_of(version) for holding in holdings for version in holding}


def v(step: int, attempt: int = 1) -> Version:
    return Version(step, attempt, "x")


@given(holdings_of_hosts)
def test_what_is_chosen_can_be_put_together_and_nothing_newer_of_that_line_can(holdings: Holdings) -> None:
    manifests = manifests_of(holdings)
    found = choose(holdings, manifests)
    whole = [one for one in manifests if not missing(holdings, one, manifests[one])]
    assert set(found.possible) == {one.step for one in whole}
    if found.version is None:
        assert not whole
        assert {lost.version for lost in found.passed} == set(manifests)
        return
    assert found.version in whole
    assert max(one.attempt for one in whole) >= found.version.attempt
    latest = [one for one in whole if one.attempt == max(other.attempt for other in whole)]
    assert found.version.step == max(one.step for one in latest)
    assert all(lost.files and lost.version.step > found.version.step for lost in found.passed)


@given(holdings_of_hosts)
def test_afterwards_every_host_holds_all_of_it_and_only_holders_have_sent(holdings: Holdings) -> None:
    manifests = manifests_of(holdings)
    version = choose(holdings, manifests).version
    if version is None:
        return
    after = [set(holding.get(version, ())) for holding in holdings]
    for one in plan_transfers(holdings, version, manifests[version]):
        assert one.file in holdings[one.source].get(version, ())
        assert one.file not in after[one.target]
        after[one.target].add(one.file)
    assert all(files == set(FILES) for files in after)


@given(holdings_of_hosts, st.integers(1, 3))
def test_retention_leaves_the_newest_that_can_be_put_together(holdings: Holdings, number: int) -> None:
    manifests = manifests_of(holdings)
    verdicts = plan_host_retention(holdings, manifests, number)
    whole = sorted({one.step for one in manifests if not missing(holdings, one, manifests[one])}, reverse=True)
    assert [one.step for one in verdicts] == sorted({one.step for one in manifests})
    assert {one.step for one in verdicts if one.keep and one.step in whole} == set(whole[:number])
    assert all(one.keep for one in verdicts if one.step >= min(whole[:number], default=0))


def test_what_an_earlier_attempt_saved_beyond_is_of_a_line_that_was_left() -> None:
    full = set(FILES)
    holdings = [{v(10): full, v(20): full}, {v(10): full, v(15, 2): full}]
    found = choose(holdings, manifests_of(holdings))
    assert found.version == v(15, 2)
    assert found.possible == (15, 10, 20)


def test_a_save_that_lacks_files_is_passed_over_by_name() -> None:
    holdings = [{v(5): set(FILES), v(10): {".metadata", "run.json", "__0_0.distcp", "__0.index"}}]
    found = choose(holdings, manifests_of(holdings))
    assert found.version == v(5)
    (lost,) = found.passed
    assert str(lost) == "save-10: __1.index, __1_0.distcp (of rank 1) on no host"


def test_a_step_that_is_asked_for_is_that_or_none() -> None:
    holdings = [{v(5): set(FILES), v(10): set(FILES)}]
    manifests = manifests_of(holdings)
    assert choose(holdings, manifests, 5).version == v(5)
    none = choose(holdings, manifests, 7)
    assert (none.version, none.possible) == (None, (10, 5))


def test_nobody_sends_all_while_another_holder_sends_nothing() -> None:
    holdings = [{v(5): set(FILES)}, {v(5): set(FILES)}, {}]
    sources = {one.source for one in plan_transfers(holdings, v(5), manifest_of(v(5)))}
    assert sources == {0, 1}
