"""Every file of a checkpoint, changed in every way: found, named, and the one before it is taken."""

import json
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

import keepstep
from keepstep.ops.verify import verify
from tests.rig import forks, tiny


@pytest.fixture
def original(tmp_path: Path) -> Path:
    """A run of two ranks, with save-4 and save-6."""
    job = tiny.Tiny(str(tmp_path / "original"), total=6, period=2, keep=2)
    forks.values(lambda: tiny.train(job), 2)
    return tmp_path / "original" / "tiny"


def _change(checkpoint: Path, name: str, kind: str, rng: random.Random) -> bool:
    """Change one file. Returns whether it is another one now."""
    file = checkpoint / name
    data = bytearray(file.read_bytes())
    match kind:
        case "flip":
            data[rng.randrange(len(data))] ^= rng.randrange(1, 256)
        case "cut":
            del data[rng.randrange(len(data)) :]
        case "grow":
            data += rng.randbytes(rng.randrange(1, 100))
        case "zeros":
            begin = rng.randrange(len(data))
            data[begin : begin + 4096] = bytes(len(data[begin : begin + 4096]))
        case "swap":
            other = checkpoint / rng.choice([f.name for f in checkpoint.iterdir() if f.name != name])
            mine, theirs = bytes(data), other.read_bytes()
            other.write_bytes(mine)
            data = bytearray(theirs)
        case "old":
            data = bytearray((checkpoint.parent / "save-4" / name).read_bytes())
        case "remove":
            file.unlink()
            return True
    changed = bytes(data) != file.read_bytes()
    file.write_bytes(data)
    return changed


def _resume(run: Path) -> int:
    parts = tiny.build(total=6)
    config = keepstep.CheckpointingConfig(save_dir=str(run.parent), period_steps=2)
    with keepstep.Checkpointer(config, keepstep.JobState(**parts), "tiny", 6, handle_signals=False) as saver:
        return saver.resume()


def _try_out(original: Path, tmp: Path, count: int, seed: int, caplog: pytest.LogCaptureFixture) -> Counter[str]:
    rng = random.Random(seed)
    names = sorted(path.name for path in (original / "save-6").iterdir())
    assert len(names) == 7  # two ranks' shards and indexes, .metadata, run.json, manifest.json
    seen: Counter[str] = Counter()
    while seen.total() < count:
        run = tmp / "work" / "tiny"
        shutil.rmtree(run.parent, ignore_errors=True)
        shutil.copytree(original, run)
        kind, name = (
            rng.choice(["flip", "flip", "flip", "cut", "grow", "zeros", "swap", "old", "remove"]),
            rng.choice(names),
        )
        if not _change(run / "save-6", name, kind, rng):
            continue
        (found,) = verify(run / "save-6")
        what = f"{kind} of {name}"
        assert found.condition != "complete", f"{what} was not found"
        told = " ".join(found.problems)
        assert ("manifest" if name == "manifest.json" else name) in told or kind == "swap", f"{what}: {told}"
        caplog.clear()
        assert _resume(run) == 4, what
        reports = list((run / ".keepstep" / "quarantine").glob("*.json"))
        if kind == "remove" or (kind == "swap" and name != "manifest.json" and not reports):
            assert "ignored" in caplog.text
            assert (run / "save-6").is_dir() or reports
        else:
            (report,) = reports
            assert json.loads(report.read_text())["damage"], what
            assert not (run / "save-6").exists()
        assert (run / "save-4").is_dir()
        seen[f"{kind} {name}"] += 1
    return seen


def _table(seen: Counter[str]) -> str:
    kinds = Counter[str]()
    for what, number in seen.items():
        kinds[what.split()[0]] += number
    return f"{seen.total()} changes over 7 files, all found and named: {dict(kinds)}"


def test_some_changes_of_every_file(original: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seen = _try_out(original, tmp_path, 60, 1, caplog)
    print(f"\n{_table(seen)}")


@pytest.mark.crash
@pytest.mark.timeout(1800)
def test_2000_changes_of_every_file(original: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seen = _try_out(original, tmp_path, 2000, 2, caplog)
    print(f"\n{_table(seen)}")
