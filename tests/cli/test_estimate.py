"""`keepstep estimate` as a person meets it."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import yaml
from torch import nn

import keepstep as library
from keepstep.cli.estimate import Dtype, Optimizer
from keepstep.cli.estimate_asked import world_of
from keepstep.errors import ConfigError
from keepstep.plan.training_size import DTYPES, OPTIMIZERS
from tests.plan.test_model_families import LLAMA
from tests.rig import forks, jobs
from tests.rig.command import keepstep
from tests.rig.folders import make_checkpoint

# Bytes that an item's frame, entries and page may take more or less than is counted for it.
EACH = 1_000


def facts(*arguments: str) -> dict[str, Any]:
    done = keepstep("estimate", *arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def sizes(found: dict[str, Any]) -> dict[str, int]:
    return {part["name"]: part["size"] for part in found["parts"]}


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"torch_dtype": "bfloat16"}))
    return tmp_path


def test_a_number_of_parameters() -> None:
    done = keepstep("estimate", "--parameters", "42M", "--dtype", "bf16", "--keep", "3", "--bandwidth", "1GB/s")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "--parameters 42M: 42,000,000 parameters, all trained"
    assert [line.split() for line in lines[1:4]] == [
        ["PART", "SIZE"],
        ["weights", "84.0", "MB"],
        ["optimizer", "336.0", "MB"],
    ]
    assert lines[7] == "3 kept: 1.3 GB; at most, while one is written: 1.7 GB"
    assert lines[8].startswith("a save takes about 0.42 s, a resume 0.42 s ")
    assert lines[-1] == "assumed: weights in bf16, adamw with moments in fp32"
    found = facts("--parameters", "42M")
    assert (sizes(found)["weights"], sizes(found)["optimizer"]) == (168_000_000, 336_000_000)
    assert (found["keep"], found["exact"], found["trained"]) == (None, False, 42_000_000)


def test_a_model_and_its_adapter(llama: Path) -> None:
    whole = facts(str(llama), "--optimizer", "none")
    assert sizes(whole)["weights"] == 2 * 8_030_261_248  # the configuration names bfloat16
    assert facts(str(llama / "config.json"), "--optimizer", "none") == whole | {"source": str(llama / "config.json")}
    adapter = facts(str(llama), "--lora-rank", "16", "--world", "8", "--replicate", "2", "--keep", "2")
    assert adapter["trained"] == 41_943_040
    assert (sizes(adapter)["adapter"], sizes(adapter)["optimizer"]) == (4 * 41_943_040, 8 * 41_943_040)
    assert (adapter["world"], adapter["keep"], adapter["peak_size"]) == (8, 2, 3 * adapter["size"])
    assert adapter["size"] / 8 < adapter["rank_size"] < adapter["size"] / 4
    frozen = facts(str(llama), "--lora-rank", "16", "--lora-targets", "q_proj, v_proj", "--with-frozen")
    assert sizes(frozen)["frozen weights"] == 2 * 8_030_261_248
    assert frozen["trained"] == 32 * 16 * (8192 + 5120)


def test_the_bytes_of_a_checkpoint(tmp_path: Path) -> None:
    """Of one and of two ranks, which are replicas."""
    shape = LLAMA | {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 260, "num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(shape | {"num_attention_heads": 4, "num_key_value_heads": 2}))

    def train(folder: str) -> None:
        import transformers

        config = transformers.AutoConfig.from_pretrained(str(tmp_path))
        model: nn.Module = transformers.AutoModelForCausalLM.from_config(config)
        optimizer = torch.optim.AdamW(model.parameters())
        settings = library.CheckpointingConfig(save_dir=folder, period_steps=1)
        state = library.JobState(model=model, optimizer=optimizer)
        with library.Checkpointer(settings, state, "run", total_steps=1, world=forks.world) as saver:
            saver.resume()
            sum(parameter.sum() for parameter in model.parameters()).backward()
            optimizer.step()
            saver.save_if_due(1)

    for world in (1, 2):
        said = facts(str(tmp_path), "--world", str(world), "--replicate", str(world))
        forks.values(lambda world=world: train(str(tmp_path / str(world))), world)
        found = facts(str(tmp_path / str(world) / "run"))
        # Of each of 21 parameters the weight and two moments; the state of a rank besides.
        assert abs(found["size"] - said["size"]) < EACH * 3 * 21 + EACH * world
        # Replicas divide the writing tensor by tensor: by no more than the largest of them it is uneven.
        uneven = 0 if world == 1 else 4 * 300 * 64
        assert abs(found["rank_size"] - said["rank_size"]) < EACH * 3 * 21 + uneven
        assert found["parameters"] == said["parameters"]


def test_what_is_there(tmp_path: Path) -> None:
    for step in (5, 10):
        make_checkpoint(tmp_path / "run", step, size=40_000 + step)
    found = facts(str(tmp_path / "run"), "--keep", "2")
    assert (found["source"], found["exact"]) == (str(tmp_path / "run" / "save-10"), True)
    files = [p for p in (tmp_path / "run" / "save-10").iterdir() if p.name != "manifest.json"]
    assert found["size"] == sum(sizes(found).values()) == sum(p.stat().st_size for p in files)
    assert found["peak_size"] == 3 * found["size"]
    assert facts(str(tmp_path / "run" / "save-5"))["source"] == str(tmp_path / "run" / "save-5")
    assert "numbers in the model" in keepstep("estimate", str(tmp_path / "run")).stdout


def test_a_job(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    config = jobs.training(tmp_path, 12).model_dump(mode="json", exclude_defaults=True)
    file.write_text(yaml.safe_dump(config))
    found = facts(str(file), "--set", "trainer.total_steps=40", "--world", "4")
    assert (found["keep"], found["world"], found["parameters"]) == (2, 4, 8 * 16 + 16 + 16 * 4 + 4)
    assert found["peak_size"] == 3 * found["size"]
    assert facts(str(file), "--set", "trainer.checkpointing.num_to_keep=null")["keep"] == 3
    assert not (tmp_path / "checkpoints").exists()


def test_the_speed_of_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keepstep.ops.estimate._AMOUNT", 2**20)
    done = keepstep("estimate", "--parameters", "1M", "--folder", str(tmp_path / "runs" / "new"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "a save takes about " in done.stdout
    assert "free there: " in done.stdout
    assert list(tmp_path.iterdir()) == []
    short = keepstep("estimate", "--parameters", "1000T", "--folder", str(tmp_path))
    assert "too few" in short.stdout
    monkeypatch.setattr("keepstep.ops.estimate._AMOUNT", 2**60)
    full = keepstep("estimate", "--parameters", "1M", "--folder", str(tmp_path))
    assert full.returncode == 1
    assert "too few to measure" in full.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("", "one of them"),
        ("{llama} --parameters 8B", "one of them"),
        ("--parameters much", "write 8B"),
        ("--parameters 8B --trainable much", "--trainable: "),
        ("--parameters 8B --trainable 9B", "9,000,000,000 trained parameters of 8,000,000,000"),
        ("--parameters 8B --lora-rank 4", "give a config.json"),
        ("--parameters 1.5", "no number of parameters"),
        ("--parameters 8B --optimizer sgd --optimizer-dtype bf16", "--optimizer sgd keeps no moments"),
        ("--parameters 8B --optimizer adamw-8bit --optimizer-dtype bf16", "keeps its moments in 8 bits"),
        ("--parameters 8B --with-frozen", "nothing is frozen"),
        ("{llama} --lora-rank 4 --lora-targets=", "--lora-targets: a name is empty"),
        ("{llama} --lora-rank 4 --lora-targets q_proj,", "--lora-targets: a name is empty"),
        ("--parameters 8B --lora-targets q_proj", "--lora-targets: needs --lora-rank"),
        ("--parameters 8B --set a.b=1", "--set: needs a job"),
        ("--parameters 8B --world 6 --replicate 4", "no multiple"),
        ("--parameters 8B --bandwidth fast", "--bandwidth: "),
        ("--parameters 8B --bandwidth-per-rank", "needs --bandwidth"),
        ("--parameters 8B --bandwidth 1GB/s --folder .", "take one of them"),
        ("--parameters 8B --dtype fp64", "fp64"),
        ("{llama} --lora-rank 4 --lora-targets query", "there are down_proj, gate_proj"),
        ("job.yaml --dtype bf16 --replicate 2", "--dtype, --replicate: the job says that itself"),
        ("nowhere.yaml", "nowhere.yaml"),
        ("{run} --optimizer sgd", "--optimizer: what is there has its size"),
    ],
)
def test_what_is_refused(llama: Path, arguments: str, problem: str) -> None:
    make_checkpoint(llama / "run", 5)
    done = keepstep("estimate", *arguments.format(llama=llama, run=llama / "run").split())
    assert done.returncode == 2
    assert problem in done.stderr


@pytest.mark.parametrize("text", ["[]", "{", '{"model_type": "llama"}', "\xff"])
def test_a_configuration_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    done = keepstep("estimate", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert str(tmp_path) in done.stderr


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"architectures": 5}, "architectures is 5"),
        ({"architectures": "LlamaForCausalLM"}, "a list of names"),
        ({"hidden_size": 10**200}, "1,000,000,000 is the most"),
        ({"num_hidden_layers": 10**10}, "100,000 is the most"),
        ({"model_type": "phi3", "num_hidden_layers": 10**10}, "100,000 is the most"),
        ({"model_type": "qwen3_moe", "num_experts": 8, "num_hidden_layers": 10**10}, "100,000 is the most"),
        ({"model_type": "qwen3_moe", "num_experts": 8, "mlp_only_layers": 5}, "mlp_only_layers is 5"),
    ],
)
def test_fields_that_no_model_has(tmp_path: Path, fields: dict[str, Any], problem: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | fields))
    done = keepstep("estimate", str(tmp_path))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert problem in done.stderr


@pytest.mark.parametrize("told", [{"quant_method": "bitsandbytes", "load_in_4bit": True}, True])
def test_quantized_weights_are_not_counted(llama: Path, told: Any) -> None:
    (llama / "config.json").write_text(json.dumps(LLAMA | {"quantization_config": told}))
    for words in ((), ("--trainable", "1M"), ("--lora-rank", "4", "--with-frozen")):
        done = keepstep("estimate", str(llama), *words)
        assert done.returncode == 2
        assert ("bitsandbytes, load_in_4bit" if told is not True else "quantization_config") in done.stderr
    assert sizes(facts(str(llama), "--lora-rank", "16"))["adapter"] == 4 * 41_943_040
    assert sizes(facts(str(llama), "--dtype", "bf16"))["weights"] == 2 * 8_030_261_248


@pytest.mark.parametrize("ranks", ["abc", "0", "-1", "", "1.5", "9" * 30])
def test_ranks_that_a_launcher_cannot_mean(ranks: str) -> None:
    with pytest.raises(ConfigError, match="WORLD_SIZE is"):
        world_of({"WORLD_SIZE": ranks})
    assert (world_of({"WORLD_SIZE": "8"}), world_of({})) == (8, 1)


def test_checkpoints_come_before_a_models_configuration(llama: Path) -> None:
    make_checkpoint(llama, 5)
    found = facts(str(llama))
    assert (found["source"], found["exact"]) == (str(llama / "save-5"), True)
    assert f"note: of the newest checkpoint; for the model that {llama / 'config.json'} describes give that file" in (
        keepstep("estimate", str(llama)).stdout.splitlines()
    )
    assert facts(str(llama / "config.json"))["exact"] is False


def test_nothing_is_there(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        done = keepstep("estimate", str(path))
        assert done.returncode == 1
        assert "give one of them, or --parameters" in done.stderr


def test_what_is_offered_is_what_is_known() -> None:
    assert set(get_args(Dtype)) == set(DTYPES)
    assert set(get_args(Optimizer)) == set(OPTIMIZERS)
