"""A prune by hand: beside a job that is at work, and by scores that are not all there."""

import os
import shutil
from pathlib import Path

import pytest

from keepstep.errors import CouldNotLookError
from keepstep.ops.prune import apply_prune, plan_prune
from keepstep.plan.policies import Best, Rules
from keepstep.storage.leases import hold
from keepstep.storage.lock import acquire_lock
from keepstep.storage.waiting_note import note_waiting
from tests.rig.command import keepstep
from tests.rig.folders import make_checkpoint, names
from tests.rig.scores import give_score

BEST = Rules((Best("task/accuracy", "max"),))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in (10, 20, 30, 40):
        make_checkpoint(tmp_path / "run", step)
    return tmp_path / "run"


def test_scores_that_are_not_all_there_delete_nothing(run: Path) -> None:
    with pytest.raises(CouldNotLookError, match=r"scores\.jsonl: there is no such file"):
        plan_prune(run, 1, BEST)
    told = keepstep("prune", str(run), "--keep-best", "1", "--metric", "task/accuracy", "--mode", "max")
    assert (told.returncode, names(run)) == (1, ["save-10", "save-20", "save-30", "save-40"])
    assert "scores.jsonl: there is no such file, so nobody knows which checkpoint is the best" in told.stderr
    give_score(run / "save-20", accuracy=0.9)
    with (run / "scores.jsonl").open("a") as file:
        file.write("{torn\n")
    with pytest.raises(CouldNotLookError, match=r"1 lines are no scores \(line 2\)"):
        plan_prune(run, 1, BEST)
    assert [one.keep for one in plan_prune(run, 1).verdicts] == [False, False, False, True]


def test_what_waits_for_its_upload_stays_while_the_job_is_at_work(run: Path) -> None:
    lock = acquire_lock(run)
    note_waiting(run, {20})
    plan = plan_prune(run, 1)
    assert next((one.step, one.reason) for one in plan.verdicts if one.keep) == (20, "waits for its upload")
    note_waiting(run, {10, 20})
    done = apply_prune(plan)
    assert [one.step for one in done.verdicts if one.keep] == [10, 20, 40]
    assert (done.freed, done.kept) == (plan.freed // 2, plan.kept + plan.freed // 2)
    lock.release()
    assert [one.step for one in plan_prune(run, 1).verdicts if one.keep] == [40]


def test_what_a_reader_took_meanwhile_is_not_called_deleted(run: Path) -> None:
    plan = plan_prune(run, 1)
    with hold(run, 20):
        shutil.rmtree(run / "save-10")
        done = apply_prune(plan)
    assert names(run) == ["save-20", "save-40"]
    assert [(one.step, one.keep) for one in done.verdicts] == [(10, False), (20, True), (30, False), (40, True)]
    assert "gone already" in done.verdicts[0].reason
    assert done.verdicts[1].reason == "pinned, or held by a reader by now"
    assert done.freed == plan.verdicts[2].size


def test_a_budget_that_readers_exceed_is_told(run: Path) -> None:
    with hold(run, 10):
        told = keepstep("prune", str(run), "--disk-budget", "90kB").stdout
    assert "readers and uploads hold 40.3 kB for now" in told
    assert sorted(name for name in os.listdir(run) if name.startswith("save-")) == ["save-10", "save-30", "save-40"]
