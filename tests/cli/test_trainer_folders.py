"""The command line on the folders of a Hugging Face Trainer, made by hand and by a real one."""

import json
from pathlib import Path

import pytest

from tests.rig.command import keepstep
from tests.rig.trainer_folders import adopt, make_trainer_checkpoint


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in (5, 10):
        make_trainer_checkpoint(tmp_path / "run", step, best=5)
    return tmp_path / "run"


def test_adopting_says_first_and_does_then(run: Path) -> None:
    (run / "checkpoint-5" / "scheduler.pt").unlink()
    dry = keepstep("adopt", str(run), "--dry-run")
    assert dry.returncode == 1
    assert "checkpoint-5: not adopted\n  scheduler.pt is missing\ncheckpoint-10: would adopt" in dry.stdout
    assert "no manifest (a Trainer wrote it alone): keepstep adopt" in keepstep("ls", str(run)).stdout
    wet = keepstep("adopt", str(run))
    assert wet.returncode == 1
    assert wet.stdout == dry.stdout.replace("would adopt", "adopted")
    again = keepstep("adopt", str(run / "checkpoint-10"))
    assert (again.returncode, again.stdout) == (0, "checkpoint-10: is keepstep's already\n")
    facts = json.loads(keepstep("adopt", str(run), "--json").stdout)
    assert [one["action"] for one in facts["plan"]["verdicts"]] == ["refuse", "leave"]


def test_adopting_where_nothing_is(tmp_path: Path) -> None:
    done = keepstep("adopt", str(tmp_path))
    assert done.returncode == 1
    assert "no checkpoint-<step> folder" in done.stderr


def test_showing_and_listing(run: Path) -> None:
    adopt(run)
    shown = keepstep("show", str(run / "checkpoint-10")).stdout
    assert "trainer: epoch 1, of 100 steps\nbest so far: checkpoint-5 with 0.25\nweights: full\n" in shown
    assert "holds optimizer, scheduler, random states\n" in shown
    assert keepstep("verify", str(run)).returncode == 0
    assert "checkpoint-10" in keepstep("ls", str(run), "--tree").stdout
    assert "optimizer.pt" in keepstep("diff", str(run / "checkpoint-5"), str(run / "checkpoint-10")).stdout


def test_pruning(run: Path) -> None:
    make_trainer_checkpoint(run, 15, best=5)
    dry = keepstep("prune", str(adopt(run)), "--keep", "1", "--dry-run").stdout
    rows = {line.split()[0]: line for line in dry.splitlines()}
    assert "keep          the best, by what the newest says" in rows["checkpoint-5"]
    assert "would delete" in rows["checkpoint-10"]
    assert keepstep("prune", str(run), "--keep", "1").returncode == 0
    assert not (run / "checkpoint-10").exists()


def test_can_resume_of_a_folder(run: Path) -> None:
    adopt(run)
    done = keepstep("can-resume", str(run))
    assert done.returncode == 0
    assert f"resumes from step 10 ({run / 'checkpoint-10'})" in done.stdout
    assert "every byte as it was written" in done.stdout
    assert "epoch 1, 90 steps remain" in done.stdout
    for step in (5, 10):
        (run / f"checkpoint-{step}" / "optimizer.pt").write_bytes(b"")
    done = keepstep("can-resume", str(run))
    assert done.returncode == 4
    assert "optimizer.pt has 0 bytes" in done.stderr
    assert json.loads(keepstep("can-resume", str(run), "--json").stdout)["outcome"] == "damaged"
    refused = keepstep("can-resume", str(run), "--set", "trainer.total_steps=5")
    assert refused.returncode == 2
    assert "belong to a JOB.yaml" in refused.stderr


def test_exporting(run: Path, tmp_path: Path) -> None:
    adopt(run)
    done = keepstep("export", str(run / "checkpoint-10"), str(tmp_path / "out"))
    assert done.returncode == 0
    assert "exported step 10" in done.stdout
    made = make_trainer_checkpoint(tmp_path / "lora", 5, adapter=True)
    adopt(tmp_path / "lora")
    assert keepstep("export", str(made), str(tmp_path / "adapter")).returncode == 2  # it has no tokenizer
    done = keepstep("export", str(made), str(tmp_path / "adapter"), "--without-tokenizer")
    assert "exported the adapter" in done.stdout
    refused = keepstep("export", str(made), str(tmp_path / "other"), "--dtype", "float16", "--without-tokenizer")
    assert refused.returncode == 2
    assert "--dtype: the checkpoint holds an adapter" in refused.stderr


def test_what_a_real_trainer_writes(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    size = {"n_layer": 1, "n_head": 2, "n_embd": 8, "vocab_size": 16, "n_positions": 8}
    config = transformers.GPT2Config(**size, bos_token_id=0, eos_token_id=0)
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 16, (8, 8))]
    out = tmp_path / "out"

    def trainer(steps: int) -> object:
        arguments = transformers.TrainingArguments(
            str(out), max_steps=steps, save_steps=1, use_cpu=True, report_to=[], disable_tqdm=True, save_total_limit=2
        )
        return transformers.Trainer(transformers.GPT2LMHeadModel(config), arguments, train_dataset=rows)

    trainer(2).train()  # type: ignore[attr-defined]
    assert keepstep("adopt", str(out)).returncode == 0
    assert keepstep("verify", str(out)).returncode == 0
    assert "weights: full" in keepstep("show", str(out / "checkpoint-2")).stdout
    # The Trainer resumes from it, rotates it by its time, and its new ones are adopted in turn.
    trainer(3).train(resume_from_checkpoint=True)  # type: ignore[attr-defined]
    assert sorted(path.name for path in out.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-3"]
    assert "checkpoint-3: adopted" in keepstep("adopt", str(out)).stdout
    assert keepstep("can-resume", str(out)).stdout.startswith("resumes from step 3")
    assert keepstep("export", str(out / "checkpoint-3"), str(tmp_path / "export")).returncode == 0
    transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "export")
