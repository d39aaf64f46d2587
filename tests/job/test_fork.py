"""Going back to an earlier checkpoint: a line of its own, begun once, and nothing later is touched."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from keepstep.checkpoint import fork as fork_module
from keepstep.errors import CheckpointNotFoundError, GuardRefusedError
from keepstep.job import loop as loop_module
from keepstep.job.asked import Asked
from keepstep.job.can_resume import can_resume
from keepstep.job.train import TrainingJob
from keepstep.ops.lineage import Line, ancestors, lines_in
from keepstep.storage.lineage import Origin, note_origin, read_forks, read_origin
from tests.rig import forks, jobs
from tests.rig.folders import make_checkpoint


def start(folder: Path, total: int = 12, back: int | None = None, **trainer: Any) -> None:
    trainer = {"checkpointing": {"save_dir": str(folder / "checkpoints"), "period_steps": 4}} | trainer
    TrainingJob(jobs.training(folder, total, **trainer)).run(asked=Asked(from_step=back))


def run_folder(folder: Path, name: str = "run") -> Path:
    return folder / "checkpoints" / name


def content(folder: Path) -> dict[str, bytes]:
    """The checkpoints and rows of a run, without keepstep's own notes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".keepstep" not in path.parts
    }


def stop_after(step: int) -> pytest.MonkeyPatch:
    patch = pytest.MonkeyPatch()

    def leave(saver: Any, now: int, total: int) -> None:
        if now == step:
            raise KeyboardInterrupt

    patch.setattr(loop_module, "leave_if_asked", leave)
    return patch


def test_the_line_of_the_run_that_stays_is_unchanged_and_the_new_one_is_its_twin(tmp_path: Path) -> None:
    start(tmp_path)
    before = content(run_folder(tmp_path))
    start(tmp_path, back=4)
    assert content(run_folder(tmp_path)) == before
    fork = run_folder(tmp_path, "run.fork-1")
    assert sorted(name for name in os.listdir(fork) if name.startswith("save-")) == ["save-12", "save-4", "save-8"]
    # Nothing was changed, so it comes to the same.
    assert jobs.state(tmp_path, 12, "run.fork-1") == jobs.state(tmp_path, 12)
    assert jobs.rows(tmp_path, "run.fork-1") == jobs.rows(tmp_path)
    record = json.loads((fork / "save-8" / "run.json").read_text())
    assert (record["run"], record["fork_of"], record["parent_step"]) == ("run.fork-1", "run/save-4", 4)


def test_a_changed_line_mixes_with_nothing(tmp_path: Path) -> None:
    start(tmp_path, data={"ledger": True})
    start(tmp_path, back=8, optimizer={"lr": 0.5}, data={"ledger": True})
    rows = [
        [json.loads(row) for row in (run_folder(tmp_path, name) / "metrics.jsonl").read_text().splitlines()]
        for name in ("run", "run.fork-1")
    ]
    assert [row["step"] for row in rows[1]] == list(range(1, 13))
    assert rows[0][:8] == rows[1][:8]
    assert all(first["lr"] != second["lr"] for first, second in zip(rows[0][8:], rows[1][8:], strict=True))


def test_it_is_begun_once_for_each_submission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(tmp_path)
    monkeypatch.setenv("KEEPSTEP_SUBMISSION", "job-1")
    patch = stop_after(6)
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path, back=4)
    patch.undo()
    start(tmp_path, back=4)
    start(tmp_path, back=4)  # the scheduler runs it once more, though it is complete
    assert [fork.name for fork in read_forks(run_folder(tmp_path))] == ["run.fork-1"]
    monkeypatch.setenv("KEEPSTEP_SUBMISSION", "job-2")
    start(tmp_path, back=4)
    assert [fork.name for fork in read_forks(run_folder(tmp_path))] == ["run.fork-1", "run.fork-2"]


def test_a_start_that_dies_while_it_begins_the_line_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(tmp_path)
    for place in ("note_fork", "_link", "publish", "_copy_history", "note_origin"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(f"keepstep.checkpoint.fork.{place}", lambda *arguments: os._exit(9))
            assert [end.status for end in forks.run(lambda: start(tmp_path, back=8))] == [9]
    start(tmp_path, back=8)
    fork = run_folder(tmp_path, "run.fork-1")
    assert read_origin(fork) is not None
    assert jobs.state(tmp_path, 12, "run.fork-1") == jobs.state(tmp_path, 12)
    assert [line.name for line in lines_in(tmp_path / "checkpoints")[0].lines] == ["run.fork-1"]
    assert not [name for name in os.listdir(fork) if ".tmp-" in name]


def test_where_links_cannot_be_made_the_files_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(tmp_path)
    true_link = os.link

    def link(source: Any, target: Any) -> None:
        if "save-" in str(target):
            raise OSError(1, "Operation not permitted")
        true_link(source, target)

    monkeypatch.setattr(os, "link", link)
    start(tmp_path, back=8)
    fork = run_folder(tmp_path, "run.fork-1")
    assert (fork / "save-8" / "manifest.json").stat().st_nlink == 1
    assert content(fork)["save-8/__0_0.distcp"] == content(run_folder(tmp_path))["save-8/__0_0.distcp"]


def test_the_line_keeps_its_checkpoint_when_the_run_deletes_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEEPSTEP_SUBMISSION", "job-1")
    start(tmp_path)
    start(tmp_path, back=8, total=16)
    checkpointing = {"save_dir": str(tmp_path / "checkpoints"), "period_steps": 4, "num_to_keep": 1}
    start(tmp_path, 20, checkpointing=checkpointing)
    assert not (run_folder(tmp_path) / "save-8").exists()
    start(tmp_path, 20, back=8)  # the line goes on though the checkpoint that it was begun from is gone
    assert (run_folder(tmp_path, "run.fork-1") / "save-20").exists()


def test_what_is_refused_begins_no_line(tmp_path: Path) -> None:
    start(tmp_path)
    before = jobs.tree_digest(tmp_path)
    with pytest.raises(CheckpointNotFoundError, match=r"step 5 was asked for; steps that can be resumed: 12, 8, 4"):
        start(tmp_path, back=5)
    with pytest.raises(GuardRefusedError, match="seed"):
        start(tmp_path, back=4, determinism={"base_seed": 8})
    outlook = can_resume(jobs.training(tmp_path, 12), 1, Asked(from_step=4))
    assert (outlook.outcome, outlook.step, outlook.remaining_steps) == ("resume", 4, 8)
    assert any("run.fork-1" in note for note in outlook.notes)
    assert jobs.tree_digest(tmp_path) == before
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["run"]


def test_two_ranks_go_back_together(tmp_path: Path) -> None:
    forks.values(lambda: start(tmp_path), 2)
    forks.values(lambda: start(tmp_path, back=4), 2)
    assert jobs.state(tmp_path, 12, "run.fork-1") == jobs.state(tmp_path, 12)


def test_the_export_of_the_line_lies_beside_that_of_the_run(tmp_path: Path) -> None:
    start(tmp_path, export_to=str(tmp_path / "export"))
    before = load_file(tmp_path / "export" / "model.safetensors")
    start(tmp_path, back=4, optimizer={"lr": 0.5}, export_to=str(tmp_path / "export"))
    after = load_file(tmp_path / "export" / "model.safetensors")
    assert all(bool((before[name] == after[name]).all()) for name in before)
    assert (tmp_path / "export.fork-1" / "model.safetensors").exists()


def test_the_tree_and_the_ancestors(tmp_path: Path) -> None:
    start(tmp_path)
    start(tmp_path, back=8)
    TrainingJob(
        jobs.training(
            tmp_path,
            12,
            run={"name": "run.fork-1"},
            checkpointing={"save_dir": str(tmp_path / "checkpoints"), "period_steps": 4},
        )
    ).run(asked=Asked(from_step=12))  # complete: nothing to begin
    start(tmp_path, back=4)
    (root,) = lines_in(tmp_path / "checkpoints")
    assert (root.name, root.origin, root.checkpoints) == ("run", None, (4, 8, 12))
    assert [(line.name, line.origin, line.checkpoints) for line in root.lines] == [
        ("run.fork-1", "run/save-8", (12,)),
        ("run.fork-2", "run/save-4", (8, 12)),
    ]
    assert ancestors(run_folder(tmp_path) / "save-12", 12) == ("save-8", "save-4")
    assert ancestors(run_folder(tmp_path, "run.fork-2") / "save-12", 12) == ("save-8", "run/save-4")
    assert lines_in(run_folder(tmp_path)) == (root,)


def test_a_line_that_goes_on_by_its_name_exports_beside_the_run_too(tmp_path: Path) -> None:
    target = str(tmp_path / "export") + "/"
    start(tmp_path, export_to=target)
    before = (tmp_path / "export" / "model.safetensors").read_bytes()
    patch = stop_after(10)
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path, back=8, optimizer={"lr": 0.5}, export_to=target)
    patch.undo()
    start(tmp_path, run={"name": "run.fork-1"}, optimizer={"lr": 0.5}, export_to=target)
    assert (tmp_path / "export" / "model.safetensors").read_bytes() == before
    assert (tmp_path / "export.fork-1" / "model.safetensors").read_bytes() != before


@pytest.mark.parametrize("name", ["../evil", "/abs", "run", "run.fork-0", "other.fork-1"])
def test_a_note_cannot_lead_out_of_the_folder_of_runs(tmp_path: Path, name: str) -> None:
    start(tmp_path)
    notes = run_folder(tmp_path) / ".keepstep" / "forks"
    notes.mkdir(parents=True)
    path = notes / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"step": 4, "submission": null}')
    before = content(run_folder(tmp_path))
    start(tmp_path, back=4)
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["run", "run.fork-1"]
    assert content(run_folder(tmp_path)) == before


def test_two_lines_that_are_begun_at_once_have_two_names(tmp_path: Path) -> None:
    start(tmp_path)
    patch = pytest.MonkeyPatch()
    note = fork_module.note_fork

    def slow(folder: Path, fork: Any) -> None:
        """Another start is faster between the look and the note."""
        patch.undo()
        start(tmp_path, back=8)
        note(folder, fork)

    patch.setattr(fork_module, "note_fork", slow)
    start(tmp_path, back=4)
    assert {fork.name: fork.step for fork in read_forks(run_folder(tmp_path))} == {"run.fork-1": 8, "run.fork-2": 4}
    record = json.loads((run_folder(tmp_path, "run.fork-2") / "save-12" / "run.json").read_text())
    assert (record["run"], record["fork_of"]) == ("run.fork-2", "run/save-4")


def test_a_fresh_start_has_no_lines(tmp_path: Path) -> None:
    start(tmp_path)
    patch = stop_after(6)
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path, back=4)
    patch.undo()
    config = jobs.training(tmp_path, 12, checkpointing={"save_dir": str(tmp_path / "checkpoints"), "period_steps": 4})
    TrainingJob(config).run(asked=Asked(fresh=True))
    assert read_forks(run_folder(tmp_path)) == []
    start(tmp_path, back=4)
    assert [fork.name for fork in read_forks(run_folder(tmp_path))] == ["run.fork-2"]


def test_notes_that_lead_in_a_circle_hide_no_run(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        make_checkpoint(tmp_path / name, 5)
        (tmp_path / name / ".keepstep").mkdir()
    note_origin(tmp_path / "a", Origin("b", 1))
    note_origin(tmp_path / "b", Origin("a", 1))
    note_origin(tmp_path / "c", Origin("c", 1))
    names = set()

    def collect(line: Line) -> None:
        names.add(line.name)
        for below in line.lines:
            collect(below)

    for line in lines_in(tmp_path):
        collect(line)
    assert names == {"a", "b", "c"}


def test_what_was_accepted_for_a_line_stays_accepted_when_it_dies_before_its_first_save(tmp_path: Path) -> None:
    start(tmp_path)
    seed = {
        "determinism": {"base_seed": 8},
        "checkpointing": {"save_dir": str(tmp_path / "checkpoints"), "period_steps": 4},
    }
    patch = stop_after(5)
    config = jobs.training(tmp_path, 12, **seed)
    with pytest.raises(KeyboardInterrupt):
        TrainingJob(config).run(asked=Asked(from_step=4, accept=("seed=8",)))
    with pytest.raises(KeyboardInterrupt):
        TrainingJob(config).run(asked=Asked(from_step=4))
    patch.undo()
    TrainingJob(config).run(asked=Asked(from_step=4))
    assert (run_folder(tmp_path, "run.fork-1") / "save-12").exists()


def test_what_others_put_into_the_checkpoint_stays_with_the_run(tmp_path: Path) -> None:
    start(tmp_path)
    (run_folder(tmp_path) / "save-8" / ".scored").write_text("0.9")
    start(tmp_path, back=8)
    line = run_folder(tmp_path, "run.fork-1") / "save-8"
    assert not (line / ".scored").exists()
    assert {path.name for path in line.iterdir()} >= {"manifest.json", "run.json", ".metadata"}
