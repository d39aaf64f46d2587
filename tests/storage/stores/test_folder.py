from pathlib import Path

import pytest

from keepstep.storage.stores.base import Store
from keepstep.storage.stores.folder import FolderStore
from tests.storage.stores.conformance import StoreContract


class TestFolderStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return FolderStore(tmp_path / "drive")


def test_a_folder_that_cannot_be_read_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")

    with pytest.raises(OSError):
        FolderStore(tmp_path / "file").list()
