"""A Trainer that was killed and resumed is the twin of one that was not: samples, losses, rates, weights, moments."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainingArguments

from keepstep.errors import ConfigError
from tests.rig.trainers import Numbers, Stream, assert_twins, run, tiny_trainer

BY_LENGTH: dict[str, Any] = (
    {"train_sampling_strategy": "group_by_length"}
    if "train_sampling_strategy" in TrainingArguments.__dataclass_fields__
    else {"group_by_length": True}  # transformers 4
)
CASES: dict[str, dict[str, Any]] = {
    "shuffled": {},
    "randomness in samples and collator": {"draws": True},
    "workers": {"draws": True, "dataloader_num_workers": 2},
    "workers that live on": {"draws": True, "dataloader_num_workers": 2, "dataloader_persistent_workers": True},
    "accumulation": {"gradient_accumulation_steps": 3, "max_steps": 12},
    "grouped by length": BY_LENGTH,
    "logs in between saves": {"logging_steps": 4},
    "a stream": {"stream": True},
    "a stream in workers": {"stream": True, "dataloader_num_workers": 2},
    "asynchronous": {"options": {"mode": "async"}},
}
# Slower ones have fewer stops here; `test_ten_stops` has all of them.
STOPS = {"workers": (17,), "workers that live on": (28,), "a stream in workers": (17,)}


def _case(name: str) -> tuple[Any, dict[str, Any]]:
    case = dict(CASES[name])
    options = case.pop("options", {})
    draws, stream = case.pop("draws", False), case.pop("stream", False)

    def build(folder: Path, callbacks: Any) -> Any:
        dataset = Stream(draws) if stream else Numbers(draws)
        return tiny_trainer(folder, dataset=dataset, callbacks=callbacks, **case)

    return build, options


def _check(name: str, tmp_path: Path, stops: Any) -> None:
    build, options = _case(name)
    whole = run(build, tmp_path / "whole", options=options)
    for stop in stops:
        folder = tmp_path / f"stopped-{stop}"
        run(build, folder, stop=stop, options=options)
        resumed = run(build, folder, resume=True, options=options)
        step = stop // 5 * 5 if stop % 5 else stop - 5  # the kill comes before the save of its own step
        assert resumed.trainer.state.global_step == whole.trainer.state.max_steps
        assert_twins(whole, resumed, step)


@pytest.mark.parametrize("name", CASES)
def test_twins(name: str, tmp_path: Path) -> None:
    _check(name, tmp_path, STOPS.get(name, (8,) if name == "accumulation" else (19,)))


@pytest.mark.trainers
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CASES)
def test_ten_stops(name: str, tmp_path: Path) -> None:
    last = CASES[name].get("max_steps", 30)
    _check(name, tmp_path, [stop for stop in (3, 6, 7, 10, 11, 13, 14, 16, 18, 19, 26, 29) if stop < last][:12])


def test_nothing_is_read_that_was_done(tmp_path: Path) -> None:
    data = Numbers()
    build = partial(tiny_trainer, dataset=data)
    run(build, tmp_path, stop=11)
    data.read.clear()
    run(build, tmp_path, resume=True)
    # 30 - 10 steps of 4 samples; the last batch of an epoch of 50 has 2; one batch is read ahead.
    assert 20 * 4 - 4 <= len(data.read) <= 20 * 4 + 4


def test_a_stream_in_workers_that_live_on_is_refused(tmp_path: Path) -> None:
    build = partial(tiny_trainer, dataset=Stream(), dataloader_num_workers=1, dataloader_persistent_workers=True)
    with pytest.raises(ConfigError, match="dataloader_persistent_workers"):
        run(build, tmp_path)
