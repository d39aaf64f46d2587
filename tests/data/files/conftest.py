from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own, which also remembers files that were written just now, and small ones."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("keepstep.storage.file_index._SETTLED_NS", -(10**18))
    monkeypatch.setattr("keepstep.storage.file_index._SMALL_BYTES", -1)
    return tmp_path / "cache" / "keepstep" / "indexes"
