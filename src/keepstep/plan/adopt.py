"""Which checkpoints of a Trainer that keepstep did not see being saved it can take for its own, and why not others."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keepstep.plan.resume import Condition
from keepstep.plan.trainer_files import STATE, sort_out


@dataclass(frozen=True)
class AdoptFacts:
    """What was found of one `checkpoint-<step>`.

    Attributes:
        step: by its name.
        condition, problem: as a checkpoint of keepstep.
        files: its files and their sizes; keepstep's own are not among them.
        trainer_step: the completed steps that `trainer_state.json` tells; None where it is not readable.
        problems: what is wrong with single files, each by its name.
    """

    step: int
    condition: Condition
    problem: str
    files: Mapping[str, int]
    trainer_step: int | None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class AdoptVerdict:
    """What becomes of one checkpoint.

    Attributes:
        action: "adopt", "leave" (it is committed already), or "refuse".
        problems: why it is refused, each by the file's name.
        size: bytes of its files.
        world_size: ranks that wrote it.
        components: names of the parts of the job's state that it holds.
    """

    step: int
    action: str
    problems: tuple[str, ...] = ()
    size: int = 0
    world_size: int = 0
    components: tuple[str, ...] = ()


def judge(facts: AdoptFacts) -> AdoptVerdict:
    """Decide about one checkpoint. A committed one is left alone, whatever it is like."""
    if facts.condition is Condition.COMPLETE:
        return AdoptVerdict(facts.step, "leave")
    if facts.condition is not Condition.INCOMPLETE:
        problem = (
            f"it was committed once and is {facts.condition.value}: {facts.problem}. If a Trainer has written it anew "
            "since, delete its manifest.json and run.json, and adopt it again"
        )
        return AdoptVerdict(facts.step, "refuse", (problem,))
    if facts.problems and not facts.files:
        return AdoptVerdict(facts.step, "refuse", facts.problems)
    held = sort_out(facts.files)
    problems = [f"{name} is missing" for name in held.missing()]
    if STATE not in facts.files:
        problems.append(f"{STATE} is missing")
    elif facts.trainer_step is None:
        problems.append(f"{STATE} is not readable as the state of a Trainer")
    elif facts.trainer_step != facts.step:
        problems.append(f"{STATE} is of step {facts.trainer_step}")
    problems += facts.problems
    size = sum(facts.files.values())
    action = "refuse" if problems else "adopt"
    return AdoptVerdict(facts.step, action, tuple(problems), size, held.world_size, held.components)


def adopted_record(
    *,
    step: int,
    attempt: int,
    created_at: str,
    world_size: int,
    base_model: str | None,
    transformers: str | None,
) -> dict[str, Any]:
    """The run record of an adopted checkpoint: what its files tell. All else is not known: null, or not there.

    Args:
        step, attempt: completed steps, and the number of the adoption among the attempts of the run.
        created_at: when the Trainer had saved it, UTC, whole seconds.
        world_size: ranks that saved it.
        base_model: what an adapter was trained on.
        transformers: the version that wrote the model's configuration.
    """
    known = {
        "step": step,
        "attempt": attempt,
        "created_at": created_at,
        "schema": 2,
        "base_model": base_model,
        "world_size": world_size,
        "dataset_parts": {},
        "mesh": {},
        "is_one_pass": False,
        "transformers": transformers,
        "adapters": {},
        "accepted": [],
    }
    return {name: known.get(name) for name in _FIELDS} | {"adopted": True}


# In the order of docs/run-record.md. Of the machine and its packages nothing is known: null would count as another one.
_FIELDS = (
    *("step", "attempt", "parent_step", "created_at", "schema", "run", "fork_of"),
    *("base_model", "base_revision", "base_weights", "dataset_sha256", "dataset_parts", "fingerprint_rules"),
    *("tokenizer_sha256", "config_sha256", "git_commit", "git_dirty", "git_diff_sha256", "seed", "global_batch_size"),
    "total_steps",
    *("hosts", "world_size", "mesh", "elastic", "is_one_pass", "transformers", "adapters", "accepted", "config"),
)
