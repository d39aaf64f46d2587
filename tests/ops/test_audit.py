import struct
from pathlib import Path

import pytest

from keepstep.errors import CheckpointNotFoundError, CouldNotLookError
from keepstep.ops.audit import audit
from keepstep.plan.order import SampleOrder
from keepstep.storage.ledger import LedgerFile, ledger_folder, read_rows, rewind


def write(run: Path, ranks: int, steps: range, *, length: int = 10, batch: int = 4, skip: int = -1) -> None:
    """Ranks consume the stream of SampleOrder in equal shares; `skip` leaves one step out."""
    order = SampleOrder(length, seed=1, shuffle=True)
    files = [LedgerFile(run, rank, length) for rank in range(ranks)]
    share = batch // ranks
    for step in steps:
        for rank, file in enumerate(files):
            begin = (step - 1) * batch + rank * share
            if step != skip:
                file.append(step, begin, order.slice(begin, share))
    for file in files:
        file.sync()
        file.close()


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_an_exact_run(tmp_path: Path, ranks: int) -> None:
    write(tmp_path, ranks, range(1, 8))
    found = audit(tmp_path)
    assert found.exact
    assert (found.steps, found.samples, found.length) == (7, 28, 10)
    assert [(e.epoch, e.consumed, e.over) for e in found.epochs] == [(0, 10, True), (1, 10, True), (2, 8, False)]
    size = sum(file.stat().st_size for file in ledger_folder(tmp_path).iterdir())
    assert size == 28 * 4 + ranks * (16 + 7 * 16)


def test_a_missed_step_is_found(tmp_path: Path) -> None:
    write(tmp_path, 2, range(1, 8), skip=2)
    found = audit(tmp_path)
    assert not found.exact
    assert found.gaps == 4
    assert found.epochs[0].missed == 4
    assert found.epochs[0].first_missed == tuple(sorted(SampleOrder(10, seed=1, shuffle=True).slice(4, 4)))


def test_a_repeated_step_is_found(tmp_path: Path) -> None:
    write(tmp_path, 1, range(1, 5))
    write(tmp_path, 1, range(4, 6))
    found = audit(tmp_path)
    assert not found.exact
    assert found.gaps == 4
    assert sum(epoch.repeated for epoch in found.epochs) == 4


def test_a_sample_in_place_of_another_is_found(tmp_path: Path) -> None:
    file = LedgerFile(tmp_path, 0, 4)
    file.append(1, 0, [0, 1, 1, 3])
    file.close()
    (epoch,) = audit(tmp_path).epochs
    assert (epoch.first_missed, epoch.first_repeated) == ((2,), (1,))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_after_a_rewind_another_world_goes_on(tmp_path: Path, ranks: int) -> None:
    write(tmp_path, 4, range(1, 7))
    rewind(tmp_path, 3)
    assert max(row.step for file in ledger_folder(tmp_path).iterdir() for row in read_rows(file)) == 3
    write(tmp_path, ranks, range(4, 9))
    assert audit(tmp_path).exact


def test_a_row_that_a_crash_cut_short_is_left_out_and_cut_off(tmp_path: Path) -> None:
    write(tmp_path, 1, range(1, 4))
    (file,) = ledger_folder(tmp_path).iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole + struct.pack("<IQI", 4, 12, 4) + b"\0\0")
    assert audit(tmp_path).exact
    rewind(tmp_path, 3)
    assert file.read_bytes() == whole


def test_what_is_no_ledger(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match=r"trainer\.data\.ledger"):
        audit(tmp_path)
    ledger_folder(tmp_path).mkdir(parents=True)
    (ledger_folder(tmp_path) / "rank_0.bin").write_text("no")
    with pytest.raises(CouldNotLookError, match="no ledger"):
        audit(tmp_path)
