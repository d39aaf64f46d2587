"""Checkpoints of a Trainer on the Hub: what lies there, what failures do, and the way back from it."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import transformers.utils.hub
from huggingface_hub import constants
from huggingface_hub.utils import _http
from transformers import Trainer, TrainerCallback

from keepstep.checkpoint.claim import FolderClaim
from keepstep.dist.world import current_world
from keepstep.errors import CheckpointNotFoundError, ConfigError, CouldNotLookError, DamagedCheckpointError, ResumeError
from keepstep.integrations.hugging_face import hub as hub_module
from keepstep.integrations.hugging_face import make_resumable
from keepstep.integrations.hugging_face import pushes as pushes_module
from keepstep.integrations.hugging_face.pushes import Pushes
from keepstep.plan import layout
from keepstep.storage.leases import held_steps
from tests.rig import forks
from tests.rig.hub_server import HubServer, Repo
from tests.rig.lora import tokenizer
from tests.rig.trainers import Killed, Ran, StopAt, assert_twins, tiny_trainer
from tests.rig.trainers import run as run_trainer

close_session = getattr(huggingface_hub.utils, "close_session", None)
if close_session is None:
    pytest.skip("the server of these tests speaks to huggingface_hub from version 1 on", allow_module_level=True)

NAME = "me/tiny"
LAST = "last-checkpoint"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    server = HubServer()
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.address + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_URL_HOSTS", frozenset({"127.0.0.1"}))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setattr(transformers.utils.hub, "_hf_api", None, raising=False)
    # Its waits between tries are seconds.
    monkeypatch.setattr(_http, "time", SimpleNamespace(sleep=lambda seconds: time.sleep(seconds / 500)))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    close_session()
    yield server
    for pushes in list(pushes_module._present.values()):
        pushes.give_up()
    server.heal()
    wait_for(lambda: not [one for one in threading.enumerate() if one.name.startswith("keepstep-push")])
    server.close()
    close_session()


def settle() -> None:
    """Nothing is being pushed any more."""
    for pushes in list(pushes_module._present.values()):
        wait_for(lambda: not pushes._waiting and not pushes._current)  # noqa: B023 - it is awaited here


def run(*args: Any, **kwargs: Any) -> Ran:
    ran = run_trainer(*args, **kwargs)
    settle()
    return ran


def build(folder: Path, callbacks: Any = (), **more: Any) -> Any:
    common: dict[str, Any] = {
        "push_to_hub": True,
        "hub_model_id": NAME,
        "hub_strategy": "checkpoint",
        "hub_private_repo": True,
        "hub_token": "let-me-in",
        "max_steps": 12,
        "save_steps": 4,
        "kind": partial(Trainer, processing_class=tokenizer()),
    }
    return tiny_trainer(folder, callbacks=callbacks, **{**common, **more})


def below(files: dict[str, bytes], place: str) -> dict[str, bytes]:
    return {name.removeprefix(f"{place}/"): content for name, content in files.items() if name.startswith(f"{place}/")}


def step_of(files: dict[str, bytes], place: str = LAST) -> int:
    return int(json.loads(files[f"{place}/manifest.json"])["step"])


def assert_whole(files: dict[str, bytes], place: str = LAST) -> None:
    """All files of one manifest, and no other."""
    held = below(files, place)
    assert held.keys() == {*json.loads(held["manifest.json"])["files"], "manifest.json"}


def assert_clean_root(repo: Repo, *needed: str) -> None:
    """In every commit: nothing of a resume at the root, and nothing anywhere that is keepstep's or under way."""
    of_resume = ("optimizer", "scheduler", "rng_state", "keepstep", "manifest", "run.json")
    own = (".keepstep", ".checkpoint", ".cache", "saves.jsonl")
    for name in {name for commit in repo.commits for name in commit.files}:
        assert not name.startswith((*of_resume, *own)), name
        assert ".tmp-" not in name
    assert set(needed) <= repo.files.keys()


def local(folder: Path, step: int) -> dict[str, bytes]:
    place = folder / f"checkpoint-{step}"
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in place.rglob("*") if path.is_file()}


# What lies there, and the way back.


def test_the_newest_checkpoint_lies_there_and_is_resumed_from(hub: HubServer, tmp_path: Path) -> None:
    stray = {f"{LAST}/rng_state_3.pth": b"of a larger world", f"{LAST}/old/shard": b"of an older step"}
    hub.repo(NAME, private=True).put("of another start", {**stray, "README.md": b"# mine"})
    folder = tmp_path / "run"
    run(build, folder, stop=10)
    repo = hub.repos[NAME]
    assert repo.private
    assert {token for token, asked in hub.tokens.items() if any(NAME in one for one in asked)} == {"let-me-in"}
    assert below(repo.files, LAST) == local(folder, 8)
    assert not stray.keys() & repo.files.keys()
    assert repo.files["README.md"] == b"# mine"
    for commit in repo.commits[2:]:
        assert_whole(commit.files)
        assert commit.message == f"Training in progress, step {step_of(commit.files)}"
        assert commit.files["model.safetensors"] == commit.files[f"{LAST}/model.safetensors"]
    assert_clean_root(repo, "model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json")

    shutil.rmtree(folder)
    resumed = run(build, folder, resume=True)
    assert resumed.trainer.state.global_step == 12
    assert_twins(run(partial(build, push_to_hub=False), tmp_path / "whole"), resumed, 8)
    assert step_of(repo.files) == 12
    assert below(repo.files, LAST) == local(folder, 12)


def test_the_repository_is_made_private(hub: HubServer, tmp_path: Path) -> None:
    run(build, tmp_path / "run", stop=5)
    assert hub.repos[NAME].private
    run(partial(build, hub_model_id="me/open", hub_private_repo=None), tmp_path / "open", stop=5)
    assert not hub.repos["me/open"].private


def test_every_checkpoint_comes_unless_a_newer_one_waits(hub: HubServer, tmp_path: Path) -> None:
    released = hub.released
    hub.plan("hang", "POST .*/preupload/", times=1)  # the first push hangs while the others are committed

    class Wait(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if state.global_step == 11:
                released.set()

    trainer = build(tmp_path / "run", [Wait()])
    make_resumable(trainer, handle_signals=False)
    trainer.train()
    steps = [step_of(one.files) for one in hub.repos[NAME].commits[1:]]
    assert steps in ([4, 8, 12], [4, 12])
    assert steps[-1] == 12


def test_all_checkpoints(hub: HubServer, tmp_path: Path) -> None:
    hub.repo(NAME).put("of a line that was left", {"checkpoint-400/manifest.json": b"{}", "checkpoint-0x/mine": b"1"})
    folder = tmp_path / "run"
    strategy = partial(build, hub_strategy="all_checkpoints")
    run(strategy, folder, stop=10)
    repo = hub.repos[NAME]
    assert below(repo.files, "checkpoint-4") == local(folder, 4)
    assert below(repo.files, "checkpoint-8") == local(folder, 8)
    assert "checkpoint-400/manifest.json" not in repo.files
    assert "checkpoint-0x/mine" in repo.files
    assert_clean_root(repo, "model.safetensors", "config.json")
    shutil.rmtree(folder)
    resumed = run(strategy, folder, resume=True)
    assert resumed.rows[0]["step"] == 9
    assert {name.split("/")[0] for name in repo.files if name.startswith("checkpoint-")} == {
        "checkpoint-4",
        "checkpoint-8",
        "checkpoint-12",
        "checkpoint-0x",
    }


def test_every_save_pushes_the_model_alone(hub: HubServer, tmp_path: Path) -> None:
    run(partial(build, hub_strategy="every_save"), tmp_path / "run", stop=10)
    repo = hub.repos[NAME]
    assert_clean_root(repo, "model.safetensors", "config.json", "tokenizer.json")
    assert not [name for name in repo.files if "/" in name]
    # Such a repository is not looked into.
    run(partial(build, hub_strategy="every_save"), tmp_path / "other", resume=True)


def test_end_and_the_users_own_push(hub: HubServer, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    trainer = run(partial(build, hub_strategy="end"), folder).trainer
    repo = hub.repos[NAME]
    assert len(repo.commits) == 1
    (folder / ".checkpoint-16.tmp-9").mkdir()
    (folder / ".checkpoint-16.tmp-9" / "model.safetensors").write_bytes(b"half")
    (folder / "notes.txt").write_text("mine")
    (folder / ".keepstep" / "leases").mkdir(parents=True, exist_ok=True)
    (folder / ".keepstep" / "leases" / "x").touch()
    trainer.push_to_hub()
    assert (folder / "saves.jsonl").is_file()
    assert_clean_root(repo, "model.safetensors", "config.json", "tokenizer.json", "README.md", "notes.txt")
    assert not [name for name in repo.files if "/" in name]
    trainer.save_model()  # pushes, too
    assert_clean_root(repo)


def test_a_plain_trainer_pushes_as_ever(hub: HubServer, tmp_path: Path) -> None:
    trainer = build(tmp_path / "run", save_strategy="no", max_steps=1)
    (tmp_path / "run").mkdir(exist_ok=True)
    (tmp_path / "run" / ".hidden").write_text("mine")
    trainer.train()
    trainer.push_to_hub()
    assert {"model.safetensors", ".hidden"} <= hub.repos[NAME].files.keys()


def test_an_adapter_lies_at_the_root(hub: HubServer, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, set_seed

    words: PreTrainedTokenizerFast = tokenizer()
    words.eos_token = "b"

    def make(folder: Path) -> Any:
        set_seed(3)
        config = GPT2Config(vocab_size=16, n_positions=16, n_embd=16, n_layer=1, n_head=2)
        args = trl.SFTConfig(
            output_dir=str(folder), max_steps=8, save_steps=4, per_device_train_batch_size=2, use_cpu=True,
            report_to=[], disable_tqdm=True, push_to_hub=True, hub_model_id=NAME, hub_strategy="checkpoint",
            hub_token="let-me-in", max_length=8, bf16=False, gradient_checkpointing=False, logging_steps=1,
        )  # fmt: skip
        return trl.SFTTrainer(
            model=GPT2LMHeadModel(config),
            args=args,
            train_dataset=datasets.Dataset.from_dict({"text": ["a b a", "b b a", "a a a", "b a b"] * 4}),
            processing_class=words,
            peft_config=peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM"),
        )

    folder = tmp_path / "run"
    trainer = make_resumable(make(folder), handle_signals=False)
    trainer.add_callback(StopAt(6))
    with pytest.raises(Killed):
        trainer.train()
    wait_for(lambda: hub.count("POST .*/commit/") == 1)
    repo = hub.repos[NAME]
    assert_clean_root(repo, "adapter_model.safetensors", "adapter_config.json", "tokenizer.json")
    assert not {"model.safetensors", "README.md"} & repo.files.keys()
    assert_whole(repo.files)
    shutil.rmtree(folder)
    again = make_resumable(make(folder), handle_signals=False)
    again.train(resume_from_checkpoint=True)
    assert [row["step"] for row in again.state.log_history if "loss" in row][-4:] == [5, 6, 7, 8]
    assert step_of(repo.files) == 8
    again.push_to_hub()
    assert_clean_root(repo, "adapter_model.safetensors", "README.md")


# What is chosen at the start.


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder with the checkpoints 4 and 8."""
    folder: Path = tmp_path_factory.mktemp("killed") / "run"
    run(partial(build, push_to_hub=False), folder, stop=10)
    return folder


def _pushed(hub: HubServer, killed: Path, folder: Path) -> Repo:
    """Such a folder whose checkpoint 8 lies on the Hub, too."""
    shutil.copytree(killed, folder)
    repo = hub.repo(NAME, private=True)
    pushes = Pushes(fake(folder), folder, 30)
    pushes.push(folder / "checkpoint-8")
    pushes.finish()
    pushes.close()
    assert step_of(repo.files) == 8
    return repo


def step_of_or_none(repo: Repo) -> int | None:
    return step_of(repo.files) if f"{LAST}/manifest.json" in repo.files else None


def wait_for(condition: Any, seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.005)


def _start(folder: Path, **more: Any) -> int:
    """The step that a start goes on from; nothing is trained."""

    class Begun(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **held: Any) -> None:
            raise Killed(state.global_step)

    trainer = make_resumable(build(folder, [Begun()], **more), handle_signals=False)
    with pytest.raises(Killed) as caught:
        trainer.train(resume_from_checkpoint=True)
    return int(caught.value.args[0])


def test_an_empty_repository_and_an_empty_folder_are_a_fresh_start(hub: HubServer, tmp_path: Path) -> None:
    assert _start(tmp_path / "run") == 0


def test_the_newer_one_wins(hub: HubServer, killed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "run"
    _pushed(hub, killed, folder)
    shutil.rmtree(folder / "checkpoint-8")
    assert _start(folder) == 8  # 4 is there
    assert local(folder, 8) == below(hub.repos[NAME].files, LAST)
    hub.asked.clear()
    ahead = tmp_path / "ahead"
    run(partial(build, push_to_hub=False), ahead)
    assert _start(ahead, max_steps=20) == 12
    assert not hub.count("GET .*/resolve/.*safetensors")


def test_a_folder_that_is_not_whole_gives_way_and_is_kept(hub: HubServer, killed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    _pushed(hub, killed, folder)
    (folder / "checkpoint-8" / "manifest.json").unlink()
    (folder / "checkpoint-8" / "mine.txt").write_text("mine")
    assert _start(folder) == 8
    assert not (folder / "checkpoint-8" / "mine.txt").exists()
    kept = list((folder / layout.SET_ASIDE).rglob("mine.txt"))
    assert [path.read_text() for path in kept] == ["mine"]


def test_a_line_that_was_left_is_not_fetched(
    hub: HubServer, killed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    _pushed(hub, killed, folder)
    trainer = make_resumable(build(folder, [StopAt(5)]), handle_signals=False)
    with pytest.raises(Killed):  # before its first save
        trainer.train(resume_from_checkpoint=str(folder / "checkpoint-4"))
    shutil.rmtree(folder / "checkpoint-8")
    assert _start(folder) == 4
    assert "of a line of this run that was left" in caplog.text


@pytest.mark.parametrize("fault", ["500", "401", "403", "drop"])
def test_a_hub_that_cannot_be_asked_is_no_empty_repository(
    hub: HubServer, killed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: Any
) -> None:
    folder = tmp_path / "run"
    _pushed(hub, killed, folder)
    hub.plan(fault, f"GET /api/models/{NAME}")
    with pytest.raises((CouldNotLookError, ResumeError), match="cannot look for checkpoints in me/tiny"):
        _start(tmp_path / "empty")
    assert _start(folder) == 8
    assert "Going on with what is in" in caplog.text


def test_a_hub_that_is_not_there(hub: HubServer, tmp_path: Path) -> None:
    trainer = make_resumable(build(tmp_path / "run"), handle_signals=False)
    hub.close()
    close_session()
    with pytest.raises(CouldNotLookError, match="cannot look for checkpoints in me/tiny"):
        trainer.train(resume_from_checkpoint=True)


@pytest.mark.parametrize("fault", ["500", "drop"])
def test_a_fetch_that_breaks_off_takes_nothing(hub: HubServer, killed: Path, tmp_path: Path, fault: Any) -> None:
    _pushed(hub, killed, tmp_path / "run")
    hub.plan(fault, "GET .*/resolve/.*/optimizer.pt")
    other = tmp_path / "other"
    with pytest.raises(CouldNotLookError, match=f"cannot fetch {LAST} from {NAME}"):
        _start(other)
    assert not [path for path in other.iterdir() if "checkpoint" in path.name]
    hub.heal()
    assert _start(other) == 8


def test_a_damaged_copy_is_told_by_name_and_not_taken(
    hub: HubServer, killed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    repo = _pushed(hub, killed, folder)
    good = dict(repo.files)
    content = bytearray(good[f"{LAST}/optimizer.pt"])
    content[len(content) // 2] ^= 1
    repo.put("damage", {f"{LAST}/optimizer.pt": bytes(content)})
    with pytest.raises(DamagedCheckpointError, match=r"last-checkpoint in me/tiny.*optimizer\.pt"):
        _start(tmp_path / "damaged")
    repo.put("partial", {f"{LAST}/optimizer.pt": good[f"{LAST}/optimizer.pt"]}, (f"{LAST}/scheduler.pt",))
    with pytest.raises(DamagedCheckpointError, match=r"not whole: scheduler\.pt is missing"):
        _start(tmp_path / "partial")
    repo.put("manifest", {f"{LAST}/manifest.json": good[f"{LAST}/manifest.json"][:-9]})
    with pytest.raises(DamagedCheckpointError, match=r"last-checkpoint/manifest\.json in me/tiny"):
        _start(tmp_path / "manifest")
    for name in ("damaged", "partial", "manifest"):
        assert not [path for path in (tmp_path / name).iterdir() if "checkpoint" in path.name]
    shutil.rmtree(folder / "checkpoint-8")
    assert _start(folder) == 4
    assert "Going on with what is in" in caplog.text


def test_files_that_are_not_in_the_manifest_are_not_taken(hub: HubServer, killed: Path, tmp_path: Path) -> None:
    _pushed(hub, killed, tmp_path / "run").put(
        "stray", {f"{LAST}/rng_state_3.pth": b"stray", f"{LAST}/sub/x": b"stray"}
    )
    other = tmp_path / "other"
    assert _start(other) == 8
    assert local(other, 8) == local(tmp_path / "run", 8)


def test_a_checkpoint_that_keepstep_did_not_write_has_a_remedy(hub: HubServer, tmp_path: Path) -> None:
    hub.repo(NAME).put("plain", {f"{LAST}/trainer_state.json": b"{}", f"{LAST}/model.safetensors": b"1"})
    with pytest.raises(CheckpointNotFoundError, match=r"hf download me/tiny.*resume_from_checkpoint"):
        _start(tmp_path / "run")


# Pushes that fail, hang, or are slow.


def test_failed_pushes_stop_nothing_and_the_next_tries_again(
    hub: HubServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    faults: list[Any] = ["500", "401", "403", "drop"]
    seen: list[int] = []

    class Plan(TrainerCallback):
        """Each save has the fault of its turn; the last has none."""

        def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            hub.heal()
            if len(seen) < len(faults):
                hub.plan(faults[len(seen)], "POST .*/commit/" if len(seen) % 2 else "PUT /lfs/")
            seen.append(state.global_step)

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            pushes = trainer._keepstep_session._saves._pushes
            if state.global_step % 2 and state.global_step > 1:
                wait_for(lambda: pushes._current is None and not pushes._waiting)

    trainer = make_resumable(build(tmp_path / "run", [Plan()], save_steps=2, max_steps=10), handle_signals=False)
    trainer.train()
    assert trainer.state.global_step == 10
    assert trainer._keepstep_session._saves._pushes.failed == 4
    for step, needle in zip((2, 4, 6, 8), ("500", "401", "403", "Error"), strict=True):
        text = next(one for one in caplog.messages if one.startswith(f"could not push step {step} "))
        assert needle in text
        assert "the next save tries again" in text
        assert "let-me-in" not in text
    repo = hub.repos[NAME]
    assert [step_of(one.files) for one in repo.commits[1:]] == [10]
    assert_whole(repo.files)


def test_nothing_half_is_ever_seen(hub: HubServer, killed: Path, tmp_path: Path) -> None:
    """A push that is dropped in its middle leaves the checkpoint before."""
    repo = _pushed(hub, killed, tmp_path / "run")
    before = dict(repo.files)
    hub.plan("drop", "POST .*/commit/")
    run(build, tmp_path / "run", resume=True)
    assert hub.count("POST .*/commit/") == 2
    assert repo.files == before


def fake(folder: Path, strategy: str = "checkpoint") -> Any:
    args = SimpleNamespace(hub_strategy=strategy, hub_token="let-me-in", hub_model_id=NAME, output_dir=str(folder))
    return SimpleNamespace(
        args=args,
        hub_model_id=NAME,
        is_world_process_zero=lambda: True,
        callback_handler=SimpleNamespace(on_push_begin=lambda *rest: None),
        state=None,
        control=None,
    )


def made(folder: Path, step: int) -> Path:
    place = folder / f"checkpoint-{step}"
    place.mkdir(parents=True)
    for name in ("model.safetensors", "optimizer.pt", "config.json"):
        (place / name).write_bytes(f"{name} {step}".encode())
    (place / "manifest.json").write_text(json.dumps({"step": step}))
    return place


def test_a_push_that_hangs_is_given_up_and_changes_nothing_later(
    hub: HubServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    repo = hub.repo(NAME)
    released = hub.released
    hub.plan("hang", "POST .*/commit/", times=1)
    pushes = Pushes(fake(tmp_path), tmp_path, 1.5)
    pushes.push(made(tmp_path, 4))
    pushes.push(made(tmp_path, 8))
    wait_for(lambda: step_of_or_none(repo) == 8)
    assert pushes.failed == 1
    assert "could not push step 4 to the Hub: it has not ended within 2 s" in caplog.text
    pushes.finish()
    released.set()
    time.sleep(0.1)
    assert step_of(repo.files) == 8
    assert held_steps(tmp_path) == frozenset()
    pushes.close()


def test_a_given_up_upload_cannot_commit_over_a_newer_one(hub: HubServer, tmp_path: Path) -> None:
    repo = hub.repo(NAME)
    hub.plan("late", "PUT /lfs/", times=1)
    pushes = Pushes(fake(tmp_path), tmp_path, 30)
    pushes.push(made(tmp_path, 4))
    wait_for(lambda: hub.count("PUT /lfs/"))
    pushes.give_up()
    pushes.push(made(tmp_path, 8))
    pushes.finish()
    hub.released.set()
    wait_for(lambda: not [one for one in threading.enumerate() if one.name == "keepstep-push-4"])
    assert [step_of(one.files) for one in repo.commits[1:]] == [8]
    pushes.close()


def test_nor_can_a_given_up_commit_that_was_sent(hub: HubServer, tmp_path: Path) -> None:
    repo = hub.repo(NAME)
    hub.plan("late", "POST .*/commit/", times=1)
    pushes = Pushes(fake(tmp_path), tmp_path, 30)
    pushes.push(made(tmp_path, 4))
    wait_for(lambda: hub.count("POST .*/commit/"))
    pushes.give_up()
    pushes.push(made(tmp_path, 8))
    pushes.finish()
    hub.released.set()
    wait_for(lambda: not [one for one in threading.enumerate() if one.name == "keepstep-push-4"])
    assert [step_of(one.files) for one in repo.commits[1:]] == [8]
    pushes.close()


def test_somebody_elses_commit_in_between_is_kept(hub: HubServer, tmp_path: Path) -> None:
    repo = hub.repo(NAME)
    hub.plan("slow", "PUT /lfs/", times=1, seconds=0.3)
    pushes = Pushes(fake(tmp_path), tmp_path, 10)
    pushes.push(made(tmp_path, 4))
    wait_for(lambda: hub.count("PUT /lfs/"))
    repo.put("a card", {"README.md": b"# mine", f"{LAST}/stray": b"1"})
    pushes.finish()
    assert repo.files["README.md"] == b"# mine"
    assert step_of(repo.files) == 4
    assert f"{LAST}/stray" not in repo.files
    pushes.close()


def test_the_end_waits_for_the_last_push_but_not_for_ever(
    hub: HubServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hub.plan("slow", "POST .*/commit/", seconds=0.3)
    run(build, tmp_path / "slow")
    assert step_of(hub.repos[NAME].files) == 12
    hub.heal()
    hub.plan("hang", "POST .*/preupload/")
    started = time.monotonic()
    trainer = run(partial(build, hub_model_id="me/hangs"), tmp_path / "hangs", options={"push_timeout_seconds": 1.0})
    assert time.monotonic() - started < 6
    assert "have not ended within 1 s" in caplog.text or "given up" in caplog.text
    assert trainer.trainer.state.global_step == 12
    assert len(hub.repos["me/hangs"].commits) == 1


def test_training_does_not_wait_for_a_push(hub: HubServer, tmp_path: Path) -> None:
    hub.plan("hang", "POST .*/preupload/")
    steps: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            steps.append(time.monotonic())

    trainer = make_resumable(build(tmp_path / "run", [Clock()]), handle_signals=False, push_timeout_seconds=1.0)
    trainer.train()
    assert steps[-1] - steps[0] < 1.0 + 12 * 0.2


def test_retention_leaves_what_is_being_uploaded(hub: HubServer, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    released = hub.released
    hub.plan("hang", "POST .*/preupload/", times=1)
    seen: dict[int, list[str]] = {}

    class Look(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            seen[state.global_step] = sorted(path.name for path in folder.glob("checkpoint-*"))
            if state.global_step == 10:
                assert 2 in held_steps(folder)
                released.set()
            if state.global_step == 11:
                wait_for(lambda: not held_steps(folder))

    options = {"save_total_limit": 1, "max_steps": 14, "save_steps": 2}
    trainer = make_resumable(build(folder, [Look()], **options), handle_signals=False)
    trainer.train()
    assert {"checkpoint-2", "checkpoint-6"} <= set(seen[7])
    assert "checkpoint-4" not in seen[9]  # it waited, and gave way to 6
    assert "checkpoint-2" in seen[10]
    assert "checkpoint-2" not in seen[13]
    # 12 may have been under way when 14 was saved.
    left = {path.name for path in folder.glob("checkpoint-*")}
    assert left == {"checkpoint-14"}  # what was still being pushed at the last save goes when that is over
    assert step_of(hub.repos[NAME].files) == 14


def test_after_an_error_what_waits_is_pushed(hub: HubServer, tmp_path: Path) -> None:
    """Beside what the process does then, and its end waits for it."""
    hub.plan("slow", "PUT /lfs/", times=1, seconds=0.5)
    ran = run_trainer(build, tmp_path / "run", stop=9)
    assert step_of_or_none(hub.repos[NAME]) is None
    ran.trainer._keepstep_session._saves._pushes._finish_at_exit()
    assert step_of(hub.repos[NAME].files) == 8


def test_nothing_is_left_running(hub: HubServer, tmp_path: Path) -> None:
    run(build, tmp_path / "run")
    wait_for(lambda: not [one.name for one in threading.enumerate() if one.name.startswith("keepstep-push")])


def test_nothing_that_the_exit_waits_for_hangs_with_the_hub(hub: HubServer, tmp_path: Path) -> None:
    """Threads of a pool would be joined at the exit of the interpreter."""
    hub.plan("hang", "PUT /lfs/")
    hub.repo(NAME)
    before = set(threading.enumerate())
    pushes = Pushes(fake(tmp_path), tmp_path, 30)
    pushes.push(made(tmp_path, 4))
    wait_for(lambda: hub.count("PUT /lfs/"))
    assert [one.name for one in threading.enumerate() if one not in before and not one.daemon] == []
    pushes.give_up()
    pushes.finish()
    pushes.close()


@pytest.mark.slow
def test_the_process_ends_although_the_hub_never_answers(hub: HubServer, tmp_path: Path) -> None:
    hub.plan("hang", "PUT /lfs/")
    hub.repo(NAME)
    made(tmp_path, 4)
    code = f"""
import pathlib, time
from types import SimpleNamespace as Some
from keepstep.integrations.hugging_face.pushes import Pushes
folder = pathlib.Path({str(tmp_path)!r})
args = Some(hub_strategy="checkpoint", hub_token="let-me-in", output_dir=str(folder))
trainer = Some(args=args, hub_model_id="{NAME}", is_world_process_zero=lambda: True, state=None, control=None)
trainer.callback_handler = Some(on_push_begin=lambda *rest: None)
pushes = Pushes(trainer, folder, 3.0)
pushes.push(folder / "checkpoint-4")
pushes.finish()
print("over", time.time(), flush=True)
"""
    environment = {**os.environ, "HF_ENDPOINT": hub.address, "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert hub.count("PUT /lfs/") >= 1, done.stderr
    assert time.time() - float(done.stdout.split("over ")[1]) < 5


def test_only_the_first_rank_asks_the_hub(tmp_path: Path) -> None:
    trainer = fake(tmp_path)
    trainer.is_world_process_zero = lambda: False
    pushes = Pushes(trainer, tmp_path, 1)
    pushes.push(made(tmp_path, 4))
    assert pushes._thread is None
    pushes.close()


def test_all_ranks_hear_that_the_hub_could_not_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first looks; what it meets is told to all."""
    asked: list[int] = []

    def look(self: Any) -> Any:
        asked.append(int(os.environ["RANK"]))
        raise ConnectionError("no network")

    monkeypatch.setattr(hub_module.Repository, "_look", look)
    trainer = fake(tmp_path)
    trainer.args.push_to_hub = True

    def rank() -> tuple[str, list[int]]:
        with pytest.raises(ResumeError) as caught:
            hub_module.fetch_newer(trainer, tmp_path, current_world(), FolderClaim(1, None))
        return str(caught.value), asked

    told = forks.values(rank, size=2)
    assert [numbers for _, numbers in told] == [[0], []]
    assert all("cannot look for checkpoints in me/tiny" in text for text, _ in told)


def test_the_bound_must_be_a_time(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="push_timeout_seconds"):
        make_resumable(tiny_trainer(tmp_path), push_timeout_seconds=0)
