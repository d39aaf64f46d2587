"""The example that embeds functions, with a model that counts letters (with MiniLM: integrations/test_embed.py)."""

import contextlib
import fnmatch
import inspect
import io
import json
import json.decoder
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from keepstep.config import load_job
from keepstep.job import inference as inference_module
from keepstep.job.inference import InferenceJob
from tests.rig import forks

EXAMPLE = Path(__file__).parents[1] / "examples" / "embed"


def letters() -> ModuleType:
    """In the place of minilm.py, which needs transformers and the weights."""
    module: Any = ModuleType("minilm")
    module.tokenizer = lambda: None
    module.model = torch.nn.Identity
    module.tokens = lambda words, texts: {"texts": list(texts)}

    def embed(model: torch.nn.Module, batch: dict[str, list[str]]) -> torch.Tensor:
        counts = torch.tensor([[text.lower().count(chr(97 + i)) for i in range(384)] for text in batch["texts"]])
        return torch.nn.functional.normalize(counts.float(), dim=1)

    module.embed = embed
    return module


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The data set's module, over two files."""
    monkeypatch.setattr(sys, "path", [str(EXAMPLE), *sys.path])
    for name in ("functions", "tasks", "search"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "minilm", letters())
    import functions

    monkeypatch.setattr(functions, "_files", lambda: [Path(m.__file__) for m in (fnmatch, json.decoder)])
    yield functions
    for name in ("functions", "tasks", "search"):
        sys.modules.pop(name, None)


def test_functions_are_cut_out_of_their_files(example: Any) -> None:
    found = {function.name: function for function in example.functions()}
    assert found["JSONDecoder.decode"].source == inspect.getsource(json.decoder.JSONDecoder.decode).strip()
    assert found["translate"].file == "fnmatch.py"
    data = example.everything(None)
    assert data.id_of(0) == f"fnmatch.py:{inspect.getsourcelines(fnmatch.fnmatch)[1]} fnmatch"
    assert data.fingerprint() != example.some(None).fingerprint()


def test_the_job_is_killed_goes_on_and_is_searched(
    example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["providers.dataset=functions:everything", "inference.batching.global_batch_size=4"]
    options.append("inference.checkpointing.period_steps=1")

    def start(stop: int | None) -> None:
        leave = inference_module.leave_if_asked

        def dies(checkpointer: Any, step: int, total: int) -> None:
            leave(checkpointer, step, total)
            if step == stop:
                os._exit(9)

        inference_module.leave_if_asked = dies
        InferenceJob(load_job(EXAMPLE / "embed.yaml", options)).run()

    def search(text: str) -> list[str]:
        import search

        sys.argv = ["search.py", text, "--count", "2"]
        with contextlib.redirect_stdout(io.StringIO()) as told:
            search.main()
        return told.getvalue().splitlines()

    assert [end.status for end in forks.run(lambda: start(2))] == [9]
    assert forks.values(lambda: search("fnmatch"))[0][0] == "'fnmatch' among 8 functions:"
    forks.values(lambda: start(None))
    data = example.everything(None)
    for index in (1, len(data) - 1):
        (lines,) = forks.values(lambda: search(data[index]))  # noqa: B023
        assert lines[0].endswith(f"among {len(data)} functions:")
        assert lines[1] == f"  1.00  {data.id_of(index)}"
