"""A Trainer's folder tells `keepstep advise` what its steps and saves cost."""

import json
from pathlib import Path
from typing import Any

from tests.rig.command import keepstep
from tests.rig.trainers import run, tiny_trainer


def build(folder: Path, callbacks: Any) -> Any:
    return tiny_trainer(folder, callbacks=callbacks, max_steps=9, save_steps=3)


def told(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "saves.jsonl").read_text().splitlines()]


def test_saves_steps_and_a_crash(tmp_path: Path) -> None:
    run(build, tmp_path, stop=8)
    run(build, tmp_path, resume=True)
    assert [(row["outcome"], row["step"], row["attempt"], row.get("steps")) for row in told(tmp_path)] == [
        ("started", 0, 1, None),
        ("saved", 3, 1, 2),
        ("saved", 6, 1, 3),
        ("started", 6, 2, None),
        ("saved", 9, 2, 2),
        ("finished", 9, 2, 0),
    ]
    saves = [row for row in told(tmp_path) if row["outcome"] == "saved"]
    assert all(row["lost_seconds"] >= row["seconds"] for row in saves)
    found = json.loads(keepstep("advise", str(tmp_path), "--json").stdout)
    assert (found["failures"]["failures"], found["failures"]["attempts"]) == (1, 2)
    assert found["costs"]["step_seconds"] > 0
    assert found["advice"]["period_steps"] >= 1


def test_in_the_background_it_loses_what_it_waits(tmp_path: Path) -> None:
    run(build, tmp_path, options={"mode": "async"})
    saves = [row for row in told(tmp_path) if row["outcome"] == "saved"]
    assert [(row["step"], row["steps"], row["mode"]) for row in saves] == [
        (3, 2, "async"),
        (6, 3, "async"),
        (9, 3, "async"),
    ]
    assert all(row["lost_seconds"] > 0 for row in saves)
