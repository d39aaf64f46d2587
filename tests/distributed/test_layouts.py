"""What was saved under one layout loads under any other: full weights and moments bit for bit, and the run goes on.

`make layouts` runs the whole table and prints it; the test command runs some of its cells.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest

from keepstep.export.weights import export_weights
from tests.rig.layouts import (
    LAYOUTS,
    begin_from,
    differences,
    run,
    save_again,
    stop_at_5,
    weights_and_moments,
    within_bounds,
)

CLOSE = 1e-5
# That FSDP2 and PP go on bit for bit under their own layout is in test_fsdp.py and in tests/job/test_pipeline.py.
SOME = [
    ("TP 2", "TP 2"),
    ("1 process", "PP 2 interleaved"),
    ("DDP 2", "TP 2"),
    ("PP 2 x FSDP2 2", "FSDP2 2 x TP 2"),
    ("PP 2 interleaved", "1 process"),
    ("HSDP 2x2", "DDP 2"),
]


class Runs:
    """One run of each layout to its end, and one that was stopped at step 5; made when first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def whole(self, name: str) -> Path:
        folder = self._folder / "whole" / name
        if not folder.exists():
            run(folder, LAYOUTS[name])
        return folder

    def stopped(self, name: str) -> Path:
        folder = self._folder / "stopped" / name
        if not folder.exists():
            stop_at_5(folder, LAYOUTS[name])
        return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("layouts"))


def check_cell(runs: Runs, saved: str, loaded: str, work: Path) -> dict[str, Any]:
    """One cell of the table: what was found, for the print."""
    shutil.copytree(runs.stopped(saved), work / "there")
    reads = run(work / "there", LAYOUTS[loaded], save_again(work / "again"))
    restored = weights_and_moments(work / "again", 5)
    assert restored == weights_and_moments(work / "there", 5), "weights or moments are not the same, bit for bit"
    assert all(within_bounds(found) for found in reads), reads
    shutil.copytree(runs.stopped(saved), work / "on")
    run(work / "on", LAYOUTS[loaded])
    whole = weights_and_moments(runs.whole(saved), 10)
    apart = max(far for _, far in differences(whole, weights_and_moments(work / "on", 10)))
    if saved == loaded:
        assert apart == 0, f"the same layout went on in another way: {apart}"
    assert apart <= CLOSE
    shutil.rmtree(work)
    overhead = max(found["read"] / max(1, found["needed"]) for found in reads)
    return {"apart": apart, "read": overhead}


@pytest.mark.parametrize(("saved", "loaded"), SOME)
def test_some_cells(runs: Runs, saved: str, loaded: str, tmp_path: Path) -> None:
    check_cell(runs, saved, loaded, tmp_path / "cell")


def check_round_trip(runs: Runs, saved: str, begun: str, work: Path) -> None:
    """Checkpoint, export, import, checkpoint, export: the same bytes."""
    first = runs.stopped(saved) / "checkpoints" / "run" / "save-5"
    export_weights(first, work / "out")
    begin_from(work / "out", work / "again", LAYOUTS[begun])
    second = work / "again" / "checkpoints" / "run" / "save-1"
    export_weights(second, work / "back")
    assert (work / "back" / "model.safetensors").read_bytes() == (work / "out" / "model.safetensors").read_bytes()
    begin_from(first, work / "straight", LAYOUTS[begun])
    export_weights(work / "straight" / "checkpoints" / "run" / "save-1", work / "third")
    assert (work / "third" / "model.safetensors").read_bytes() == (work / "out" / "model.safetensors").read_bytes()
    shutil.rmtree(work)


@pytest.mark.parametrize(("saved", "begun"), [("TP 2", "PP 2"), ("FSDP2 2", "TP 2")])
def test_some_round_trips(runs: Runs, saved: str, begun: str, tmp_path: Path) -> None:
    check_round_trip(runs, saved, begun, tmp_path / "trip")


@pytest.mark.layouts
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("saved", LAYOUTS)
def test_round_trips_from_each_layout_into_each(runs: Runs, saved: str, tmp_path: Path) -> None:
    for begun in LAYOUTS:
        check_round_trip(runs, saved, begun, tmp_path / "trip")


@pytest.mark.layouts
@pytest.mark.timeout(3600)
def test_the_whole_table(runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table: dict[str, dict[str, str]] = {}
    problems = []
    for saved in LAYOUTS:
        for loaded in LAYOUTS:
            try:
                found = check_cell(runs, saved, loaded, tmp_path / "cell")
                text = "bits" if found["apart"] == 0 else f"{found['apart']:.0e}"
            except AssertionError as error:
                text = "FAIL"
                problems.append(f"{saved} -> {loaded}: {error}")
                shutil.rmtree(tmp_path / "cell", ignore_errors=True)
            table.setdefault(saved, {})[loaded] = text
    width = max(map(len, LAYOUTS))
    with capsys.disabled():
        print(
            "\n\nrows: layout at the save; columns: at the load. Weights and moments restored bit for bit in each cell;"
        )
        print("shown: how far five more steps are from the run that was not resharded (bits: not one bit)\n")
        print(" " * width, " ".join(name.rjust(width) for name in LAYOUTS))
        for saved, row in table.items():
            print(saved.ljust(width), " ".join(row[loaded].rjust(width) for loaded in LAYOUTS))
        print("\n".join(["", *problems]))
    assert not problems
