"""Before torch is imported anywhere: one thread, so that forked ranks are safe and results are the same everywhere."""

import gc
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
# A forked process does not look through all that was imported: that takes half a second, and copies its pages.
os.register_at_fork(after_in_child=gc.freeze)
# A busy machine is no fault of what is tested.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")


pytest_plugins = ["tests.rig.mirrors"]


@pytest.fixture(scope="module", autouse=True)
def _quick_collections() -> None:
    """Accelerate collects garbage at each start of a trainer: of what is there already there is none."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _wherever_temporary_folders_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of what is logged must not depend on whether these folders go with the machine."""
    monkeypatch.setattr("keepstep.checkpoint.volatile.volatile", lambda folder: "")
