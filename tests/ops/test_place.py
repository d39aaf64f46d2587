from pathlib import Path

import pytest

from keepstep.config.address import parse_address
from keepstep.errors import CheckpointNotFoundError, ConfigError, CouldNotLookError
from keepstep.ops.place import address_of, open_stored, place_of, survey_address
from tests.rig.folders import make_checkpoint


def test_paths_and_addresses_are_told_apart() -> None:
    assert place_of("runs/a") == Path("runs/a")
    assert place_of("file:///mnt/a") == Path("/mnt/a")
    assert place_of("s3://bucket/a") == parse_address("s3://bucket/a")
    with pytest.raises(ConfigError, match="ftp"):
        place_of("ftp://host/a")


def test_what_can_only_be_read_is_not_written() -> None:
    assert str(address_of("https://host/a", to_write=False)) == "https://host/a"
    with pytest.raises(ConfigError, match="only be read"):
        address_of("https://host/a", to_write=True)
    with pytest.raises(ConfigError, match="no address"):
        address_of("/mnt/a", to_write=False)


def test_a_web_server_is_not_listed() -> None:
    with pytest.raises(CouldNotLookError, match="one checkpoint"):
        survey_address(parse_address("https://host/run"))


def test_a_checkpoint_is_opened_at_its_run(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "run", 5)
    found = open_stored(parse_address(f"file://{tmp_path}/run/save-5"))
    assert (found.found.step, found.files.name, found.modified > 0) == (5, "save-5", True)
    with pytest.raises(CheckpointNotFoundError, match="nothing is there"):
        open_stored(parse_address(f"file://{tmp_path}/run/save-6"))
    with pytest.raises(CheckpointNotFoundError, match="not the address of a checkpoint"):
        open_stored(parse_address(f"file://{tmp_path}/run"))
