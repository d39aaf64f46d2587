"""What waits for its upload, as a prune by hand sees it."""

from pathlib import Path

import pytest

from keepstep.storage.lock import acquire_lock
from keepstep.storage.waiting_note import note_waiting, waiting_steps


def test_a_note_counts_while_a_job_is_at_work(tmp_path: Path) -> None:
    note = tmp_path / ".keepstep" / "waiting.json"
    lock = acquire_lock(tmp_path)
    note_waiting(tmp_path, ())
    assert not note.exists()
    note_waiting(tmp_path, {20, 10})
    assert waiting_steps(tmp_path) == {10, 20}
    before = note.stat()
    note_waiting(tmp_path, [10, 20])
    assert note.stat().st_ino == before.st_ino
    lock.release()
    assert waiting_steps(tmp_path) == frozenset()
    note_waiting(tmp_path, ())
    assert not note.exists()


@pytest.mark.parametrize("content", ["", "[]", '{"steps": 7}', '{"steps": ["a", true, null, [10]]}'])
def test_a_note_that_is_none_says_nothing(content: str, tmp_path: Path) -> None:
    lock = acquire_lock(tmp_path)
    (tmp_path / ".keepstep" / "waiting.json").write_text(content)
    assert waiting_steps(tmp_path) == frozenset()
    lock.release()
