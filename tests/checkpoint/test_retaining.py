"""What a save deletes where `checkpointing.keep` has rules."""

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import keepstep
from keepstep.checkpoint.claim import FolderClaim
from keepstep.checkpoint.retaining import decide
from keepstep.checkpoint.save import SaveRequest, apply_retention
from keepstep.plan.policies import NO_RULES, Best, EverySteps, Rules, YoungerThan
from keepstep.storage.survey import survey
from tests.rig.folders import make_checkpoint, names
from tests.rig.scores import give_score

BEST = Rules((Best("task/accuracy", "max"),))


def kept(folder: Path, rules: Rules, number: int | None = 1, held: tuple[int, ...] = ()) -> list[int]:
    return [v.step for v in decide(folder, survey(folder).complete, number, rules, (), held) if v.keep]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in (10, 20, 30, 40):
        make_checkpoint(tmp_path / "run", step)
    return tmp_path / "run"


def saved(folder: Path, **keep: Any) -> keepstep.Checkpointer:
    config = keepstep.CheckpointingConfig.model_validate(
        {"save_dir": str(folder), "period_steps": 5, "num_to_keep": 1, "keep": keep}
    )
    return keepstep.Checkpointer(config, keepstep.JobState(model=nn.Linear(2, 2)), run_name="run", total_steps=50)


def test_the_best_outlives_later_saves_once_it_is_scored(tmp_path: Path) -> None:
    with saved(tmp_path, every_steps=20, best={"metric": "task/accuracy", "mode": "max"}) as saver:
        for step in (5, 10, 15, 20, 25, 30):
            saver.save(step)
            give_score(tmp_path / "run" / f"save-{step}", accuracy=0.9 if step == 10 else 0.5)
    assert [name for name in names(tmp_path / "run") if name.startswith("save-")] == ["save-10", "save-20", "save-30"]


def test_scores_that_cannot_be_read_delete_nothing(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    (run / "scores.jsonl").mkdir()
    with caplog.at_level(logging.WARNING, "keepstep"):
        assert kept(run, BEST) == [10, 20, 30, 40]
    assert "what may be the best stays" in caplog.text
    assert kept(run, Rules((EverySteps(20),))) == [20, 40]


def test_scores_that_can_be_read_in_part_delete_no_best(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    give_score(run / "save-20", accuracy=0.9)
    with (run / "scores.jsonl").open("a") as file:
        file.write("<<<<<<< mine\n=======\n")
    assert kept(run, BEST) == [10, 20, 30, 40]
    assert kept(run, Rules(BEST.policies, budget_bytes=1)) == [10, 20, 30, 40]
    assert f"{run / 'scores.jsonl'}: 2 lines are no scores (line 2, 3); what may be the best stays" in caplog.text
    give_score(run / "save-30", accuracy=0.1)
    assert kept(run, BEST) == [10, 20, 40]


def test_scores_that_were_there_and_are_gone_delete_nothing(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert kept(run, BEST) == [40]
    give_score(run / "save-20", accuracy=0.9)
    assert kept(run, BEST) == [20, 40]
    (run / "scores.jsonl").rename(run / "away")
    assert kept(run, BEST) == [10, 20, 30, 40]
    assert "scores.jsonl is gone; what may be the best stays" in caplog.text
    (run / "scores.jsonl").touch()
    assert kept(run, BEST) == [40]


def test_a_metric_that_nobody_measures_is_told(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "keepstep"):
        assert kept(run, BEST) == [40]
        assert not caplog.records
        give_score(run / "save-10", acuracy=0.5)
        assert kept(run, BEST) == [40]
    assert (
        "no checkpoint has a score task/accuracy so far, so none stays for it; there are: task/acuracy" in caplog.text
    )


def test_the_young_stay_by_what_their_record_says(run: Path) -> None:
    age = time.time() - 1767225600.0  # as `make_checkpoint` has it
    assert kept(run, Rules((YoungerThan(age + 3600),))) == [10, 20, 30, 40]
    assert kept(run, Rules((YoungerThan(age - 3600),))) == [40]


def test_a_budget_holds_and_what_it_cannot_take_is_told(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    budget = 2 * 41_000
    assert kept(run, Rules(budget_bytes=budget), None) == [30, 40]
    assert not caplog.records
    with caplog.at_level(logging.WARNING, "keepstep"):
        assert kept(run, Rules(budget_bytes=budget), None, held=(10, 20)) == [10, 20, 40]
    assert "that must stay take 0.0 GB, more than the disk budget" in caplog.text
    caplog.clear()
    verdicts = decide(run, survey(run).complete, None, Rules(budget_bytes=budget), (), (10, 20), passing=(10, 20))
    assert [v.step for v in verdicts if v.keep] == [10, 20, 30, 40]
    assert "until readers and uploads let go of 0.0 GB" in caplog.text


def test_the_one_just_written_is_the_newest_whatever_its_number(run: Path) -> None:
    verdicts = decide(run, survey(run).complete, 1, Rules(budget_bytes=1), (20,), (), 20)
    assert [v.step for v in verdicts if v.keep] == [20]


def test_before_a_save_the_newest_stays_beside_what_is_protected(run: Path) -> None:
    verdicts = decide(run, survey(run).complete, 1, NO_RULES, (10,), ())
    assert [v.step for v in verdicts if v.keep] == [10, 40]


def test_a_budget_alone_is_applied_by_saves(tmp_path: Path) -> None:
    config = {"save_dir": str(tmp_path), "period_steps": 5, "keep": {"disk_budget_gb": 1e-6}}
    made = keepstep.CheckpointingConfig.model_validate(config)
    state = keepstep.JobState(model=nn.Linear(2, 2))
    with keepstep.Checkpointer(made, state, run_name="run", total_steps=50) as saver:
        for step in (5, 10):
            saver.save(step)
    assert "save-5" not in os.listdir(tmp_path / "run")


def request(folder: Path, **more: Any) -> SaveRequest:
    return SaveRequest(folder, 40, FolderClaim(1, None), None, False, {}, (), **more)


def test_what_waits_is_noted_also_where_nothing_is_ever_deleted(run: Path) -> None:
    note = run / ".keepstep" / "waiting.json"
    apply_retention(request(run, num_to_keep=None, waiting=lambda complete: {20}))
    assert json.loads(note.read_text()) == {"steps": [20]}
    apply_retention(request(run, num_to_keep=1, waiting=lambda complete: {20}))
    assert [name for name in names(run) if name.startswith("save-")] == ["save-20", "save-40"]
    apply_retention(request(run, num_to_keep=1))
    assert not note.exists()
    assert names(run) == ["save-40"]


def test_a_note_that_cannot_be_written_keeps_no_disk_full(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    (run / ".keepstep" / "waiting.json").mkdir(parents=True)
    apply_retention(request(run, num_to_keep=1, waiting=lambda complete: {20}))
    assert names(run) == ["save-20", "save-40"]
    assert "could not note what waits" in caplog.text


def test_what_waits_costs_the_best_nothing(run: Path) -> None:
    give_score(run / "save-10", accuracy=0.9)
    rules = Rules(BEST.policies, budget_bytes=2 * 41_000)
    apply_retention(request(run, num_to_keep=1, rules=rules, waiting=lambda complete: {20, 30}))
    assert [name for name in names(run) if name.startswith("save-")] == ["save-10", "save-20", "save-30", "save-40"]
