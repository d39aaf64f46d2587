"""A watcher alone, with others, and in bad company."""

import math
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import keepstep
from keepstep.config.address import parse_address
from keepstep.errors import ConfigError, CouldNotLookError
from keepstep.ops.scoring import watcher as watcher_module
from keepstep.ops.scoring.places import LocalPlace, MirrorPlace
from keepstep.ops.scoring.watcher import Watcher, WatchOptions
from keepstep.plan.score_command import ScoreCommand
from keepstep.plan.scores import FAILED, FILE, MARKED, RETRY, SCORED, Score, measured
from keepstep.plan.watch import MOST_DEATHS, Retries
from keepstep.storage.deletion import delete_checkpoint
from keepstep.storage.leases import held_steps
from keepstep.storage.local import remove_tree
from keepstep.storage.scoring.scores import add_score, read_scores
from tests.rig.folders import make_checkpoint

ONCE = WatchOptions(every_seconds=0.01, until="once", retries=Retries(3, 0.01))


def watch(run: Path, function: Any, **more: Any) -> Any:
    options = WatchOptions(**{**vars(ONCE), **{key: more.pop(key) for key in list(more) if key in vars(ONCE)}})
    return keepstep.watch(run, function, options=options, **more)


def step_of(path: Path) -> dict[str, float]:
    return {"step": float(path.name.partition("-")[2])}


def outcomes(run: Path) -> list[tuple[int, str]]:
    return [(row.step, row.outcome) for row in read_scores(run)]


def test_each_is_scored_once_newest_first(tmp_path: Path) -> None:
    for step in (1, 3, 2):
        make_checkpoint(tmp_path, step)
    result = watch(tmp_path, step_of)
    assert (result.scored, result.failed, result.gone) == (3, 0, 0)
    assert outcomes(tmp_path) == [(3, SCORED), (2, SCORED), (1, SCORED)]
    row = read_scores(tmp_path)[0]
    assert row.metrics == {"step": 3.0}
    assert (row.checkpoint, row.set, row.tries) == ("save-3", "task", 1)
    assert row.command[0].endswith("step_of")
    assert {"python", "keepstep", "torch"} <= row.versions.keys()
    before = (tmp_path / FILE).read_bytes()
    assert watch(tmp_path, step_of).scored == 0
    assert (tmp_path / FILE).read_bytes() == before
    assert held_steps(tmp_path) == frozenset()


def test_functions_commands_and_data_side_by_side(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 1)
    watch(
        tmp_path,
        lambda path, data: {"length": len(data)},
        sets={"main": "12345", "canary": lambda path: {"ok": 1}, "named": "math:hypot"},
        retries=Retries(1),
    )
    (one,) = measured(read_scores(tmp_path))
    assert dict(one.metrics) == {"main/length": 5.0, "canary/ok": 1.0}
    assert "named" in one.failed


def test_failures_are_tried_again_then_told_and_only_asked_for_tried_once_more(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 1)
    calls: list[float] = []

    def fails(path: Path) -> Mapping[str, float]:
        calls.append(time.monotonic())
        raise RuntimeError("no luck")

    assert watch(tmp_path, fails).failed == 1
    assert outcomes(tmp_path) == [(1, RETRY), (1, RETRY), (1, FAILED)]
    assert [row.tries for row in read_scores(tmp_path)] == [1, 2, 3]
    assert read_scores(tmp_path)[2].problem == "RuntimeError: no luck"
    assert calls[1] - calls[0] > 0.009
    assert calls[2] - calls[1] > 0.019
    assert watch(tmp_path, step_of).scored == 0
    assert watch(tmp_path, fails, retries_failed=True).failed == 1
    assert len(calls) == 6
    assert watch(tmp_path, step_of, retries_failed=True).scored == 1
    assert watch(tmp_path, step_of, retries_failed=True).scored == 0
    (one,) = measured(read_scores(tmp_path))
    assert (dict(one.metrics), dict(one.failed)) == ({"task/step": 1.0}, {})


def test_nan_is_a_score(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 1)
    assert watch(tmp_path, lambda path: {"loss": math.nan}).scored == 1
    assert math.isnan(read_scores(tmp_path)[0].metrics["loss"])


def test_marks_of_a_loop_are_respected_unless_they_are_to_be_ignored(tmp_path: Path) -> None:
    (make_checkpoint(tmp_path, 1) / ".scored").touch()
    make_checkpoint(tmp_path, 2)
    assert watch(tmp_path, step_of).scored == 1
    assert outcomes(tmp_path) == [(1, MARKED), (2, SCORED)]
    assert watch(tmp_path, step_of).scored == 0
    assert watch(tmp_path, step_of, respects_marks=False).scored == 1
    assert outcomes(tmp_path)[2:] == [(1, SCORED)]


def test_one_that_vanishes_is_gone_and_no_failure(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 1)
    make_checkpoint(tmp_path, 2)

    def vanishes(path: Path) -> dict[str, float]:
        if path.name == "save-2":
            remove_tree(path)  # by hand: no lease keeps a person from that
            raise FileNotFoundError(path)
        return step_of(path)

    result = watch(tmp_path, vanishes)
    assert (result.scored, result.failed, result.gone) == (1, 0, 1)
    assert outcomes(tmp_path) == [(1, SCORED)]


def test_what_is_scored_is_held_and_what_waits_only_within_the_budget(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        make_checkpoint(tmp_path, step, size=100_000)
    seen = []

    def look(path: Path) -> dict[str, float]:
        seen.append((path.name, held_steps(tmp_path)))
        for step in (1, 2, 3, 4):
            if (tmp_path / f"save-{step}").exists():
                delete_checkpoint(tmp_path, step, 1)
        return step_of(path)

    result = watch(tmp_path, look, hold_bytes=250_000, every_seconds=5.0)  # no look in the background
    assert seen[0] == ("save-4", {3, 4})
    assert seen[1] == ("save-3", {3})
    assert (result.scored, result.failed) == (2, 0)
    assert not (tmp_path / "save-3").exists() or held_steps(tmp_path) == frozenset()


def test_watchers_in_threads_share_the_work(tmp_path: Path) -> None:
    for step in range(12):
        make_checkpoint(tmp_path, step + 1)
    results: list[int] = []

    def work() -> None:
        results.append(watch(tmp_path, lambda path: time.sleep(0.01) or step_of(path)).scored)  # type: ignore[func-returns-value]

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(results) == 12
    assert sorted(row.step for row in read_scores(tmp_path)) == list(range(1, 13))


def test_a_checkpoint_at_which_watchers_die_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_checkpoint(tmp_path, 1)
    real = watcher_module.claimed

    def claimed(*arguments: Any) -> Any:
        context = real(*arguments)
        claim = context.__enter__()
        assert claim is not None
        claim.deaths = MOST_DEATHS
        return _entered(context, claim)

    monkeypatch.setattr(watcher_module, "claimed", claimed)
    result = watch(tmp_path, step_of)
    assert (result.scored, result.failed) == (0, 1)
    assert "10 watchers died" in read_scores(tmp_path)[0].problem


class _entered:
    def __init__(self, context: Any, claim: Any) -> None:
        self._context, self._claim = context, claim

    def __enter__(self) -> Any:
        return self._claim

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)


def test_one_that_another_watcher_took_over_is_not_written(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 1)

    def slow(path: Path) -> dict[str, float]:
        if not read_scores(tmp_path):
            (name,) = [one for one in os.listdir(tmp_path / ".keepstep/scoring") if one.endswith(".1")]
            (tmp_path / ".keepstep/scoring" / name.replace(".1", ".2")).touch()
            digest = LocalPlace(tmp_path).checkpoints()[0].digest
            add_score(tmp_path, Score(1, digest, "task", SCORED, metrics={"theirs": 1.0}))
        return step_of(path)

    assert watch(tmp_path, slow).scored == 0
    assert [dict(row.metrics) for row in read_scores(tmp_path)] == [{"theirs": 1.0}]


def test_it_ends_with_the_run_and_looks_again_where_it_could_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Place(LocalPlace):
        looks = 0

        def is_finished(self) -> bool:
            return self.looks >= 3

        def checkpoints(self) -> Any:
            self.looks += 1
            if self.looks == 2:
                raise CouldNotLookError("the drive is away")
            if self.looks == 3:
                make_checkpoint(tmp_path, 2)
            return super().checkpoints()

    make_checkpoint(tmp_path, 1)
    options = WatchOptions(every_seconds=0.01)
    slept: list[float] = []
    watcher = Watcher(Place(tmp_path), tmp_path, [ScoreCommand("task")], options, {"task": step_of})
    assert watcher.run(slept.append).scored == 2
    assert slept == [0.01]
    assert "the drive is away; looking again" in caplog.text


def test_what_comes_while_one_is_scored_is_held_too(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 1)

    def slow(path: Path) -> dict[str, float]:
        if path.name == "save-1":
            make_checkpoint(tmp_path, 2)
            until = time.monotonic() + 20
            while 2 not in held_steps(tmp_path) and time.monotonic() < until:
                time.sleep(0.01)
        return {"held": float(len(held_steps(tmp_path)))}

    options = WatchOptions(every_seconds=0.02, order="oldest", hold_bytes=10**9)
    watcher = Watcher(_Ends(tmp_path), tmp_path, [ScoreCommand("task")], options, {"task": slow})
    assert watcher.run().scored == 2
    assert read_scores(tmp_path)[0].metrics["held"] == 2.0
    assert held_steps(tmp_path) == frozenset()


class _Ends(LocalPlace):
    """A run that is finished with its second checkpoint."""

    def is_finished(self) -> bool:
        return len(self.checkpoints()) == 2


def test_once_is_what_is_there_now(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 1)

    def saves_on(path: Path) -> dict[str, float]:
        make_checkpoint(tmp_path, int(step_of(path)["step"]) + 1)
        return step_of(path)

    assert watch(tmp_path, saves_on).scored == 1
    assert outcomes(tmp_path) == [(1, SCORED)]


def test_one_that_was_replaced_while_it_was_scored_gets_no_row(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 1)

    def replaced(path: Path) -> dict[str, float]:
        remove_tree(path)
        make_checkpoint(tmp_path, 1, attempt=2)
        return step_of(path)

    assert (watch(tmp_path, replaced).scored, watch(tmp_path, step_of).scored) == (0, 1)
    assert len(read_scores(tmp_path)) == 1


def test_a_place_that_is_away_after_a_score_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_checkpoint(tmp_path, 1)
    real, calls = LocalPlace.has, []

    def has(self: LocalPlace, checkpoint: Any) -> bool:
        calls.append(1)
        if len(calls) == 2:
            raise CouldNotLookError("the drive is away")
        return real(self, checkpoint)

    monkeypatch.setattr(LocalPlace, "has", has)
    monkeypatch.setattr(watcher_module, "_PAUSES", (0.0, 0.0))
    assert watch(tmp_path, step_of).scored == 1


def test_what_cannot_be_fetched_is_no_try_of_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_checkpoint(tmp_path / "there", 1)
    monkeypatch.setattr(watcher_module, "_AWAY_SECONDS", 0.01)
    place = MirrorPlace(parse_address(f"file://{tmp_path / 'there'}"), tmp_path / "scratch")
    (tmp_path / "scores").mkdir()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        time.sleep(seconds)
        (tmp_path / "scratch").mkdir(exist_ok=True)

    watcher = Watcher(place, tmp_path / "scores", [ScoreCommand("task")], ONCE, {"task": step_of})
    assert watcher.run(sleep).scored == 1
    assert [row.tries for row in read_scores(tmp_path / "scores")] == [1]
    assert slept


def test_a_run_that_is_moved_while_it_is_scored_is_gone(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "run", 1)

    def moves(path: Path) -> dict[str, float]:
        path.parent.rename(tmp_path / "moved")
        return step_of(path)

    assert watch(tmp_path / "run", moves).gone == 1
    assert not (tmp_path / "run").exists()


def test_failures_of_others_and_of_before_are_told(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 1)
    assert watch(tmp_path, lambda path: {}, retries=Retries(1)).failed == 1
    again = watch(tmp_path, step_of)
    assert (again.failed, again.failed_before) == (0, 1)


def test_a_function_that_leaves_ends_nothing(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 1)
    assert watch(tmp_path, lambda path: sys.exit("bye"), retries=Retries(1)).failed == 1


def test_two_scorers_of_one_set_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="two scorers"):
        watch(tmp_path, "score {checkpoint}", sets={"task": step_of})
    with pytest.raises(ConfigError, match="two scorers"):
        watch(tmp_path, step_of, sets={"task": step_of})


def test_a_wrong_path_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CouldNotLookError, match="no such folder"):
        watch(tmp_path / "nowhere", step_of)
    with pytest.raises(CouldNotLookError, match="one checkpoint"):
        watch(make_checkpoint(tmp_path, 1), step_of)


def test_a_place_that_cannot_be_read_at_the_start_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(CouldNotLookError):
        watch(tmp_path / "link", step_of)


def test_a_row_that_the_disk_does_not_take_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_checkpoint(tmp_path, 1)
    real, calls = watcher_module.add_score, []

    def add(*arguments: Any, **named: Any) -> bool:
        calls.append(1)
        if len(calls) < 3:
            raise OSError(28, "No space left on device")
        return real(*arguments, **named)

    monkeypatch.setattr(watcher_module, "add_score", add)
    monkeypatch.setattr(watcher_module, "_PAUSES", (0.0, 0.0, 0.0))
    assert watch(tmp_path, step_of).scored == 1
    assert len(calls) == 3


def test_a_folder_where_nothing_can_be_written_is_an_error_that_names_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_checkpoint(tmp_path / "run", 1)

    def refuse(*_: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(watcher_module, "claimed", refuse)
    with pytest.raises(CouldNotLookError, match="--scores names another folder"):
        watch(tmp_path / "run", step_of)
    monkeypatch.undo()
    assert watch(tmp_path / "run", step_of, scores=tmp_path / "scores").scored == 1
    assert not (tmp_path / "run" / FILE).exists()


def test_a_trainers_own_checkpoints_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "checkpoint-10").mkdir()
    assert watch(tmp_path, step_of).scored == 0
    assert "keepstep adopt" in caplog.text


def test_what_cannot_work_on_a_mirror_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--scores"):
        keepstep.watch("s3://bucket/run", step_of)
    with pytest.raises(ConfigError, match="held back"):
        watch("s3://bucket/run", step_of, scores=tmp_path, hold_bytes=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="letters"):
        watch(tmp_path, step_of, sets={"a b": step_of})
