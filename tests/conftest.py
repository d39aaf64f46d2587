"""Before torch is imported anywhere: one thread, so that forked ranks are safe and results are the same everywhere."""

import os

os.environ["OMP_NUM_THREADS"] = "1"
# A killed peer makes every survivor print a C++ stack.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import hypothesis
import pytest
import torch

# Both are imported late: here they come once, and not for a second in each forked rank.
import torch._dynamo

import keepstep.job.train  # noqa: F401

torch.set_num_threads(1)
# A busy machine is no fault of what is tested.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _wherever_temporary_folders_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of what is logged must not depend on whether these folders go with the machine."""
    monkeypatch.setattr("keepstep.checkpoint.volatile.volatile", lambda folder: "")
