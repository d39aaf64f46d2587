import pytest

from keepstep.plan import last_copy


@pytest.mark.parametrize(
    ("name", "checkpoint"),
    [
        ("save-5/manifest.json", "save-5"),
        ("a/b/checkpoint-10/sub/x", "a/b/checkpoint-10"),
        ("save-5", None),
        ("run/save-05/x", None),
        ("run/.keepstep/note", None),
    ],
)
def test_a_file_is_of_the_checkpoint_whose_folder_it_lies_in(name: str, checkpoint: str | None) -> None:
    assert last_copy.checkpoint_of(name) == checkpoint


def test_the_copy_lies_beside_its_checkpoint() -> None:
    names = ["run/save-5/a", "run/save-5/sub/b", "run/save-50/a", "run/note"]

    assert last_copy.copies(names, "run/save-5") == {
        "run/save-5/a": "run/last-checkpoint/a",
        "run/save-5/sub/b": "run/last-checkpoint/sub/b",
    }
    assert last_copy.place_of("save-5") == "last-checkpoint"


def test_a_copy_is_known_by_its_folder() -> None:
    assert last_copy.is_copy("run/last-checkpoint/a")
    assert not last_copy.is_copy("run/last-checkpoint")
    assert not last_copy.is_copy("run/save-5/a")


def test_only_the_newest_has_a_copy() -> None:
    names = ["run/save-5/a", "run/save-20/a", "other/save-90/a", "run/last-checkpoint/a"]

    assert last_copy.is_newest("run/save-20", names)
    assert last_copy.is_newest("run/save-21", names)
    assert last_copy.is_newest("run/save-100", [])
    assert not last_copy.is_newest("run/save-10", names)
