"""What is read of a run's folder, whole or not."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from keepstep.errors import CouldNotLookError
from keepstep.ops.best import find_best
from keepstep.ops.report.gather import gather
from keepstep.ops.report.logs import RunLogs
from keepstep.plan.lock import Claim
from keepstep.plan.manifest import FileRecord, Manifest, manifest_digest, to_text
from keepstep.plan.report.story import story_of
from keepstep.plan.scores import SCORED, Score
from keepstep.storage import named_records
from keepstep.storage.digest import digest_of_bytes
from keepstep.storage.scoring.scores import add_score
from tests.rig.report_runs import commit, lines, long_run, saved
from tests.rig.scores import give_score
from tests.rig.trainer_folders import adopt, make_trainer_checkpoint


def test_a_long_run(tmp_path: Path) -> None:
    story = story_of(gather(long_run(tmp_path / "long", steps=1000, checkpoints=20, attempts=5, ranks=2)))
    assert (story.state, story.step, story.total_steps) == ("finished", 1000, 1000)
    assert [(one.number, one.start, one.end, one.redone) for one in story.attempts] == [
        (1, 0, 250, 50),
        (2, 200, 450, 50),
        (3, 400, 650, 50),
        (4, 600, 850, 50),
        (5, 800, 1000, 0),
    ]
    assert [one.name for one in story.series] == ["loss", "lr"]
    assert story.forks == ("long.fork-1",)
    assert (story.mirrors[0].newest, story.mirrors[0].waiting) == (1000, 0)
    assert {one.field for one in story.record.changes} == {"config.trainer.optimizer.lr", "torch"}
    assert story.scores.chosen is not None
    assert story.notes == ()


def test_a_folder_with_nothing(tmp_path: Path) -> None:
    story = story_of(gather(tmp_path))
    assert story.state == "not begun"
    assert len(story.notes) == 3


def test_no_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CouldNotLookError, match="no such folder"):
        gather(tmp_path / "nowhere")


def test_one_checkpoint_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(CouldNotLookError, match=r"give the folder of its run: .*run"):
        gather(commit(tmp_path / "run", 1))


def test_a_folder_of_runs_names_them(tmp_path: Path) -> None:
    commit(tmp_path / "one", 1)
    with pytest.raises(CouldNotLookError, match="runs in it: one"):
        gather(tmp_path)


def test_one_checkpoint_and_nothing_else(tmp_path: Path) -> None:
    commit(tmp_path / "run", 100, attempt=2, created_at="2026-01-01T00:00:00Z", parent_step=None)
    story = story_of(gather(tmp_path / "run"))
    assert [(one.number, one.start, one.end) for one in story.attempts] == [(2, 0, 100)]
    assert story.checkpoints[0].created_at == 1_767_225_600
    assert [note.partition(":")[0] for note in story.notes] == [
        "there is no saves.jsonl",
        "there is no metrics.jsonl, and no history of a Trainer",
    ]


def test_torn_and_strange_lines_are_left_out_and_said(tmp_path: Path) -> None:
    row = json.dumps(saved(100, 1)).encode()
    (tmp_path / "saves.jsonl").write_bytes(
        b"\n".join([row, b'{"step": 1', b"[1]", b"\xff\xfe", b"", b"[" * 99_999, row[:50]])
    )
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1, "loss": NaN}\n{"step": 2, "loss": 1}')
    (tmp_path / "scores.jsonl").write_bytes(b"nothing\n")
    found = gather(tmp_path)
    assert len(found.saves) == 1
    assert [(point.step, point.value) for point in found.logged[0].points] == [(1, None), (2, 1.0)]
    assert "saves.jsonl: 4 of 6 lines are no rows; they are left out" in found.notes
    assert "scores.jsonl: 1 lines are no rows; they are left out" in found.notes


def test_files_that_are_none(tmp_path: Path) -> None:
    for name in ("saves.jsonl", "metrics.jsonl", "scores.jsonl"):
        (tmp_path / name).mkdir()
    notes = gather(tmp_path).notes
    assert any(note.startswith("saves.jsonl cannot be read") for note in notes)
    assert any(note.startswith("metrics.jsonl cannot be read") for note in notes)
    assert any("scores.jsonl" in note for note in notes)


def test_a_fifo_does_not_hold_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics.jsonl")
    notes: list[str] = []
    assert RunLogs(tmp_path).metrics.look(notes).rows == 0
    assert notes == ["metrics.jsonl cannot be read: it is no regular file"]


def test_damage_is_part_of_the_story(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (commit(run, 100) / "manifest.json").write_text("{}")
    (commit(run, 200) / "run.json").unlink()
    (run / ".save-300.tmp-2").mkdir()
    for place, name in (("quarantine", "save-50.2"), ("set-aside", "save-60.3.1"), ("set-aside", "run-4")):
        (run / ".keepstep" / place / name).mkdir(parents=True)
    (run / ".keepstep/quarantine/save-50.2.json").write_text('{"problem": "a block is wrong"}')
    (run / ".keepstep/line.json").write_text("[")
    (run / ".keepstep/exit.json").write_text("{")
    (run / ".keepstep/lock-3").write_text("nobody")
    found = gather(run)
    assert {one.step: one.condition for one in found.checkpoints} == {100: "incomplete", 200: "damaged"}
    assert [(one.step, one.attempt, one.place, one.why) for one in found.moved] == [
        (50, 2, "quarantine", "a block is wrong"),
        (60, 3, "set aside", ""),
    ]
    assert found.leftovers == (".save-300.tmp-2",)
    assert found.claim is Claim.UNKNOWN
    assert any(note.startswith("where the run was forked cannot be told") for note in found.notes)


def test_a_run_that_went_back_says_so(tmp_path: Path) -> None:
    commit(tmp_path, 100)
    (tmp_path / ".keepstep").mkdir()
    (tmp_path / ".keepstep/line.json").write_text('{"step": 50, "attempt": 2, "source": "runs/x/save-50"}')
    (tmp_path / ".keepstep/origin.json").write_text('{"run": "parent", "step": 7}')
    found = gather(tmp_path)
    assert found.origin == "parent/save-7"
    assert any(note.startswith("attempt 2 went back to step 50 (runs/x/save-50)") for note in found.notes)


def test_passwords_do_not_get_into_a_report(tmp_path: Path) -> None:
    address = "s3://user:hunter2@host/bucket"
    row: dict[str, Any] = {
        "outcome": "not mirrored",
        "step": 1,
        "attempt": 1,
        "address": address,
        "problem": f"{address}: no",
    }
    lines(tmp_path / "saves.jsonl", [row])
    assert "hunter2" not in repr(gather(tmp_path))


def test_a_trainers_history(tmp_path: Path) -> None:
    history = [
        {"step": 10, "epoch": 0.5, "loss": 2.0, "learning_rate": 0.1, "grad_norm": 1.5},
        {"step": 20, "epoch": 1.0, "loss": 1.0, "learning_rate": 0.05},
        {"step": 20, "epoch": 1.0, "eval_loss": 1.25, "eval_runtime": 3.0, "eval_samples_per_second": 9.0},
        {"step": 20, "epoch": 1.0, "train_loss": 1.5, "train_runtime": 9.0, "total_flos": 1e9},
        "nothing",
    ]
    folder = tmp_path / "checkpoint-20"
    folder.mkdir()
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": history, "max_steps": 40}))
    (tmp_path / "metrics.jsonl.previous-1").touch()
    story = story_of(gather(tmp_path))
    assert [(one.name, one.last) for one in story.series] == [
        ("loss", 1.0),
        ("learning_rate", 0.05),
        ("grad_norm", 1.5),
    ]
    assert (story.step, story.total_steps) == (20, 40)
    assert (story.scores.metric, story.scores.why_none) == ("eval/loss", "not complete (step 20)")
    assert [series.name for series in story.scores.series] == ["eval/loss"]
    assert any("previous" in note for note in story.notes)


def test_a_trainers_evaluations_are_of_the_checkpoint_of_their_step(tmp_path: Path) -> None:
    history = [
        {"step": 10, "eval_loss": 3.0},
        {"step": 20, "eval_loss": 2.0},
        {"step": 20, "eval_other_loss": 2.5},
        {"step": 30, "eval_loss": 1.0},
    ]
    for step in (20, 30):
        folder = make_trainer_checkpoint(tmp_path, step)
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": history}))
    give_score(adopt(tmp_path) / "checkpoint-20", accuracy=0.5)
    story = story_of(gather(tmp_path), "eval/loss")
    assert [dict(row.metrics) for row in story.scores.rows] == [
        {"eval/loss": 3.0},
        {"task/accuracy": 0.5, "eval/loss": 2.0, "eval/other_loss": 2.5},
        {"eval/loss": 1.0},
    ]
    assert (story.scores.value, story.scores.gone) == (1.0, {10})


def test_the_metric_of_the_run_decides(tmp_path: Path) -> None:
    best = [{"metric": "task/bleu", "mode": "max", "guards": ["task/accuracy<0.9"]}]
    config = {"trainer": {"checkpointing": {"keep": {"best": best}}}}
    for step in (10, 20, 30):
        give_score(commit(tmp_path / "run", step, config=config), accuracy=step / 31, bleu=1.0 * step)
    lines(tmp_path / "run/metrics.jsonl", [{"step": 10, "loss": 1.0}])
    found = story_of(gather(tmp_path / "run")).scores
    assert (found.metric, found.value, found.asked) == ("task/bleu", 20.0, False)
    state = {
        "best_metric": 0.5,
        "best_global_step": 10,
        "log_history": [{"step": 10, "eval_f1": 0.5, "loss": 2, "lr": 1}],
    }
    (tmp_path / "checkpoint-10").mkdir()
    (tmp_path / "checkpoint-10/trainer_state.json").write_text(json.dumps(state))
    lines(tmp_path / "metrics.jsonl", [{"step": 10, "loss": 1.0}])
    story = story_of(gather(tmp_path))
    assert (story.scores.metric, story.scores.asked) == ("eval/f1", False)
    assert [(one.name, one.last) for one in story.series] == [("loss", 1.0), ("lr", 1.0)]


def test_a_score_is_of_one_checkpoint_not_of_a_step(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for step, accuracy in ((10, 0.5), (20, 0.9)):
        give_score(commit(run, step), accuracy=accuracy)
    shutil.rmtree(run / "save-20")
    commit(run, 20, size=7)
    found = story_of(gather(run)).scores
    assert found.choice == find_best(run, "task/accuracy", "max").choice
    assert (found.value, found.gone) == (0.5, {20})


@pytest.mark.parametrize("config", [None, {"trainer": {"total_steps": 90}}])
def test_the_last_step_of_any_job(tmp_path: Path, config: dict[str, Any] | None) -> None:
    commit(tmp_path / "run", 10, total_steps=None if config else 90, config=config)
    assert gather(tmp_path / "run").total_steps == 90


def test_a_folder_of_lightnings(tmp_path: Path) -> None:
    for step, accuracy in ((3, 0.9), (6, 0.5)):
        digest = _recorded(tmp_path, f"epoch=0-step={step}.ckpt", step)
        add_score(tmp_path, Score(step, digest, "task", SCORED, metrics={"accuracy": accuracy}))
    (tmp_path / "foreign.ckpt").write_bytes(b"x")
    story = story_of(gather(tmp_path))
    assert [(one.step, one.name, one.size, one.created_at) for one in story.checkpoints] == [
        (3, "epoch=0-step=3.ckpt", 100, 1_767_225_600),
        (6, "epoch=0-step=6.ckpt", 100, 1_767_225_600),
    ]
    assert story.scores.chosen is not None
    assert (story.state, story.step, story.scores.chosen.step) == ("unknown", 6, 3)
    assert story.scores.choice == find_best(tmp_path, "accuracy", "max").choice
    assert story.record.fields
    assert [note.partition(":")[0] for note in story.notes] == ["there is no saves.jsonl", "there is no metrics.jsonl"]
    assert "Lightning" in story.notes[1]


def _recorded(folder: Path, name: str, step: int) -> str:
    """A checkpoint of Lightning's as keepstep leaves it, with made-up content. Returns the digest of its manifest."""
    (folder / named_records.FOLDER).mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"x" * 100)
    manifest = Manifest(step, step, 1, ("state_dict",), {named_records.CONTENT: FileRecord(100, f"{step}")})
    named_records.record_path(folder / name, step).write_text(to_text(manifest, digest_of_bytes))
    record = {"step": step, "attempt": step, "created_at": "2026-01-01T00:00:00Z", "world_size": 1, "seed": 0}
    named_records.facts_path(folder / name, step).write_text(json.dumps(record))
    return manifest_digest(manifest, digest_of_bytes)
