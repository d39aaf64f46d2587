"""What is adopted of a Trainer's checkpoints is decided from their names, sizes and problems alone."""

from dataclasses import replace

import pytest

from keepstep.plan.adopt import AdoptFacts, adopted_record, judge
from keepstep.plan.resume import Condition

_WHOLE = {
    **dict.fromkeys(("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"), 10),
    **dict.fromkeys(("trainer_state.json", "training_args.bin"), 1),
}
_FACTS = AdoptFacts(7, Condition.INCOMPLETE, "it has no manifest", _WHOLE, 7)


def test_a_whole_one_is_adopted() -> None:
    verdict = judge(_FACTS)
    assert (verdict.action, verdict.problems, verdict.size, verdict.world_size) == ("adopt", (), 42, 1)
    assert verdict.components == ("model", "optimizer", "lr_scheduler", "rng")


@pytest.mark.parametrize("name", sorted(set(_WHOLE) - {"training_args.bin"}))
def test_what_is_missing_is_named(name: str) -> None:
    files = {other: size for other, size in _WHOLE.items() if other != name}
    verdict = judge(replace(_FACTS, files=files))
    assert verdict.action == "refuse"
    assert len(verdict.problems) == 1
    assert name in verdict.problems[0]


def test_a_rank_without_its_random_states() -> None:
    files = {name: size for name, size in _WHOLE.items() if name != "rng_state.pth"}
    files |= {"rng_state_0.pth": 1, "rng_state_3.pth": 1}
    verdict = judge(replace(_FACTS, files=files))
    assert verdict.problems == ("rng_state_1.pth is missing", "rng_state_2.pth is missing")


@pytest.mark.parametrize(
    ("step", "problem"),
    [(8, "trainer_state.json is of step 8"), (None, "trainer_state.json is not readable as the state of a Trainer")],
)
def test_the_state_must_be_of_the_step(step: int | None, problem: str) -> None:
    assert judge(replace(_FACTS, trainer_step=step)).problems == (problem,)


def test_committed_ones_are_left_alone_and_damaged_ones_refused() -> None:
    assert judge(replace(_FACTS, condition=Condition.COMPLETE, files={})).action == "leave"
    verdict = judge(replace(_FACTS, condition=Condition.DAMAGED, problem="x has 1 bytes, not 2", files={}))
    assert verdict.problems[0].startswith("it was committed once and is damaged: x has 1 bytes, not 2. If a Trainer")


def test_the_record_says_what_is_known() -> None:
    known = {"step": 7, "attempt": 2, "created_at": "2026-01-01T00:00:00Z", "world_size": 4}
    record = adopted_record(**known, base_model=None, transformers="5.24.0")  # type: ignore[arg-type]
    assert {name: record[name] for name in known} == known
    assert record["adopted"] is True
    assert record["transformers"] == "5.24.0"
    assert record["dataset_sha256"] is record["seed"] is record["config"] is record["run"] is None
