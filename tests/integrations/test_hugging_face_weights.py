"""From a Hugging Face folder into a job with other names and shapes, and out into such a folder again."""

from pathlib import Path

import pytest
import torch

from keepstep.errors import ConfigError
from keepstep.job.train import TrainingJob
from tests.rig import forks, jobs

pytest.importorskip("transformers")

import transformers

from tests.rig import decoder_job


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        out = model(decoder_job.IDS)
    found: torch.Tensor = getattr(out, "logits", out)
    return found


@pytest.mark.parametrize(("ranks", "only_head"), [(1, False), (2, False), (1, True)])
def test_a_job_from_llamas_weights_to_llamas_weights(tmp_path: Path, ranks: int, only_head: bool) -> None:
    theirs = decoder_job.save_llama(tmp_path / "llama")
    forks.values(lambda: TrainingJob(decoder_job.training(tmp_path, 4, only_head=only_head)).run(), ranks)
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "export").eval()
    assert not torch.allclose(logits(back), logits(theirs))
    before, after = theirs.state_dict(), back.state_dict()
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert (same == before.keys() - {"lm_head.weight"}) if only_head else not same
    # It resumes, without reading the base again where it has all weights.
    forks.values(lambda: TrainingJob(decoder_job.training(tmp_path, 8, only_head=only_head)).run(), ranks)
    assert (tmp_path / "checkpoints" / "run" / "save-8").exists()


def test_what_cannot_work_is_refused_before_the_first_step(tmp_path: Path) -> None:
    decoder_job.save_llama(tmp_path / "llama")
    config = tmp_path / "llama" / "config.json"
    config.write_text(config.read_text().replace('"llama"', '"mystery"'))
    with pytest.raises(ConfigError, match="no mapper for it"):
        TrainingJob(decoder_job.training(tmp_path, 4)).run()
    assert not (tmp_path / "checkpoints").exists()
    for wrong in ({"export_mapper": "inverse"}, {"export_mapper": "inverse", "export_to": "x"}):
        with pytest.raises(ConfigError, match="export_mapper"):
            jobs.training(tmp_path, 4, **wrong)
