"""No input makes a reader run code, leave the folder, take memory without end, loop, or fail in an undocumented way."""

import pickle
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.checkpoint.filesystem as dcp_files
import torch.distributed.checkpoint.metadata as dcp_metadata

from tests.fuzz.guard import Watch, in_child
from tests.fuzz.mutate import pick
from tests.fuzz.targets import Target, all_targets, make_files

pytestmark = pytest.mark.filterwarnings("ignore")

# Inputs of the long form beside the crafted ones.
COUNTS = {
    "manifest.json": 20_000,
    "run.json": 10_000,
    "index": 20_000,
    ".metadata": 25_000,
    "tree": 20_000,
    "archive": 15_000,
    "checkpoint": 4_000,
    "diff": 4_000,
    "safetensors": 10_000,
    "foreign DCP": 4_000,
}
# What all inputs together may make the process grow, in MiB.
GROWN = 600


def run(folder: Path, share: float, seed: int) -> dict[str, Any]:
    """Feed every reader. Returns for each: inputs, how many were refused, and seconds."""

    def work(at: Callable[[str, int], None]) -> dict[str, Any]:
        watch = Watch(str(folder))
        before = _classes()
        told = {}
        for target in all_targets(folder):
            told[target.name] = _feed(target, int(COUNTS[target.name] * share), seed, watch, at)
        assert _classes() == before, "a pickle has set attributes of classes"
        return {"told": told}

    make_files(folder)
    return in_child(work)


def _feed(target: Target, count: int, seed: int, watch: Watch, at: Callable[[str, int], None]) -> dict[str, Any]:
    begin, refused = time.monotonic(), 0
    inputs = [*target.seeds, *target.crafted]
    for number in range(len(inputs) + count):
        at(target.name, number)
        if number < len(inputs):
            data = inputs[number]
        else:
            data = pick(random.Random(f"{seed} {target.name} {number}"), target.seeds, target.mutations)
            if target.name in ("checkpoint", "diff", "foreign DCP") and data[:1] not in {
                one[:1] for one in target.seeds
            }:
                data = target.seeds[0][:1] + data
        target.prepare(data)
        try:
            with watch:
                target.read(data)
        except target.refusals:
            assert number >= len(target.seeds), "what is right was refused"
            refused += 1
        assert not watch.seen, f"{target.name} input {number}: {watch.seen}"
    return {"inputs": len(inputs) + count, "refused": refused, "seconds": round(time.monotonic() - begin, 1)}


def _classes() -> list[list[tuple[str, int]]]:
    """The attributes of the classes whose names stand in pickles."""
    found = [one for module in (dcp_metadata, dcp_files) for one in vars(module).values() if isinstance(one, type)]
    return [sorted((name, id(value)) for name, value in vars(one).items()) for one in found]


def _print(result: dict[str, Any]) -> None:
    told = result["told"]
    for name, one in told.items():
        print(f"{name:14} {one['inputs']:7,} inputs, {one['refused']:7,} refused, {one['seconds']:6.1f} s")
    total = sum(one["inputs"] for one in told.values())
    print(f"{total:,} inputs: no code run, no other error, {result['grown']} MiB grown at most", file=sys.stdout)


def test_some_wrong_inputs(tmp_path: Path) -> None:
    result = run(tmp_path, 0.01, seed=1)
    _print(result)
    assert result["grown"] < GROWN


@pytest.mark.fuzz
@pytest.mark.timeout(900)
def test_a_hundred_thousand_wrong_inputs(tmp_path: Path) -> None:
    result = run(tmp_path, 1, seed=2)
    assert sum(one["inputs"] for one in result["told"].values()) >= 100_000
    assert result["grown"] < GROWN
    _print(result)


@pytest.mark.parametrize(
    "data", [b"cos\nsystem\n(X\x04\x00\x00\x00truetR.", b"cbuiltins\nexec\n(X\x01\x00\x00\x001tR."]
)
def test_a_reader_that_runs_code_would_be_seen(tmp_path: Path, data: bytes) -> None:
    def work(at: Callable[[str, int], None]) -> dict[str, Any]:
        watch = Watch(str(tmp_path))
        with watch:
            pickle.loads(data)
        return {"seen": watch.seen}

    assert in_child(work)["seen"]


def test_a_reader_that_opens_other_files_or_takes_memory_would_be_seen(tmp_path: Path) -> None:
    def work(at: Callable[[str, int], None]) -> dict[str, Any]:
        watch = Watch(str(tmp_path))
        with watch:
            Path("/etc/hostname").read_bytes()
            (tmp_path / "new").write_bytes(b"")
        with pytest.raises(MemoryError):
            bytearray(3 << 30)
        return {"seen": watch.seen, "held": len(b"x" * (700 << 20))}

    result = in_child(work)
    assert len(result["seen"]) == 2
    assert result["grown"] > GROWN
