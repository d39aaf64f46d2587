import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstep.plan import layout


@given(st.integers(min_value=0, max_value=10**18))
def test_a_checkpoint_name_gives_its_step_back(step: int) -> None:
    assert layout.step_of(layout.checkpoint_name(step)) == step


@pytest.mark.parametrize(
    "name",
    [
        *("save-", "save-007", "save-10.tmp", "save-10.bak", "save-10x", "save-abc", "Save-1", "save--1", "save-1 "),
        *(" save-1", "save-1\n", "save-١", "save-1e3", "xsave-1", ".save-10.tmp-1", "save-" + "9" * 40),
    ],
)
def test_near_misses_are_foreign(name: str) -> None:
    assert layout.step_of(name) is None


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_uncommitted_folders_give_their_attempt_back(step: int, attempt: int) -> None:
    for name in (layout.temporary_name(step, attempt), layout.doomed_name(step, attempt)):
        assert layout.attempt_of(name) == attempt
        assert layout.step_of(name) is None


@pytest.mark.parametrize("name", [".save-1.tmp-", ".save-1.tmp-x", "save-1.tmp-1", ".save-01.tmp-1", ".save-1.bak-1"])
def test_other_hidden_folders_are_foreign(name: str) -> None:
    assert layout.attempt_of(name) is None


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "../x", "/etc/passwd", "a\\b", "a\nb", "a\0b", "x" * 300])
def test_names_that_leave_the_folder_are_not_safe(name: str) -> None:
    assert not layout.is_safe_file_name(name)


def test_our_own_file_names_are_safe() -> None:
    for name in (layout.METADATA, layout.MANIFEST, layout.RUN_RECORD, layout.shard_name(3), layout.index_name(12)):
        assert layout.is_safe_file_name(name)
