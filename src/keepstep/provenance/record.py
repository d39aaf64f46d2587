"""The run record: what one must know later to tell one checkpoint from another. docs/run-record.md lists its fields."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from keepstep.plan.config_rules import is_identity
from keepstep.plan.guards import flatten
from keepstep.provenance.code import code_of
from keepstep.provenance.fingerprint import RULES
from keepstep.provenance.machine import machine
from keepstep.provenance.secrets import masked, masked_text

SCHEMA_VERSION = 2


@dataclass(frozen=True)
class RunFacts:
    """What only the job knows about itself. What is None is not known, and is not compared at a resume.

    Attributes:
        run_name: name of the run, None for an inference job.
        config: the whole resolved configuration, as plain containers. Secrets in it are masked.
        seed: the base seed.
        base_model: where the first weights came from.
        base_revision: which revision of them, where they are versioned.
        base_weights: a digest of them.
        dataset_sha256: what identifies the data; by default that of the data set behind `JobState.data`.
        dataset_parts: digests of what the data set is made of, by name.
        tokenizer_sha256: a digest of the tokenizer.
        global_batch_size: samples in one step.
        mesh: ranks on each axis.
        data_parallel: ranks that read different samples; by default all.
        elastic: whether the same global batches come on any number of ranks; None: not known.
        is_one_pass: whether this is an inference job: each input once, in input order.
        fork_of: the checkpoint of another run that this one was forked from, `<run>/save-<step>`.
        total_steps: the last step, where the job knows it.
    """

    run_name: str | None = None
    config: Mapping[str, Any] | None = None
    seed: int | None = None
    base_model: str | None = None
    base_revision: str | None = None
    base_weights: str | None = None
    dataset_sha256: str | None = None
    dataset_parts: Mapping[str, str] = field(default_factory=dict)
    tokenizer_sha256: str | None = None
    global_batch_size: int | None = None
    mesh: Mapping[str, int] = field(default_factory=dict)
    data_parallel: int | None = None
    elastic: bool | None = None
    is_one_pass: bool = False
    fork_of: str | None = None
    total_steps: int | None = None


def collect(facts: RunFacts, world_size: int, hosts: int = 1) -> dict[str, Any]:
    """Everything that stays the same over one attempt. Works outside git and offline; unknown fields are null.

    Args:
        facts: what the job knows.
        world_size: its ranks.
        hosts: machines that they are on.

    Raises:
        TypeError, ValueError: the configuration holds what JSON cannot.
    """
    code = code_of(Path.cwd())
    config = None if facts.config is None else masked(facts.config)
    collected: dict[str, Any] = {
        "schema": SCHEMA_VERSION,
        "run": facts.run_name,
        "fork_of": facts.fork_of,
        "base_model": None if facts.base_model is None else masked_text(facts.base_model),
        "base_revision": facts.base_revision,
        "base_weights": facts.base_weights,
        "dataset_sha256": facts.dataset_sha256,
        "dataset_parts": dict(facts.dataset_parts),
        "fingerprint_rules": RULES,
        "tokenizer_sha256": facts.tokenizer_sha256,
        "config_sha256": None if config is None else config_digest(config),
        "git_commit": code.commit,
        "git_dirty": code.dirty,
        "git_diff_sha256": code.diff_sha256,
        "seed": facts.seed,
        "global_batch_size": facts.global_batch_size,
        "total_steps": facts.total_steps,
        "hosts": hosts,
        "world_size": world_size,
        "mesh": dict(facts.mesh),
        "data_parallel": facts.data_parallel or world_size,
        "elastic": facts.elastic,
        "is_one_pass": facts.is_one_pass,
        **machine(),
        "adapters": {},
        "accepted": [],
        "config": config,
    }
    json.dumps(collected)  # what cannot be written is refused here, before anything else is
    return collected


def config_digest(config: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of what a configuration says of the run: places, retention and logging are left out."""
    identity = {path: value for path, value in flatten(config).items() if is_identity(path)}
    return hashlib.sha256(json.dumps(identity, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def to_text(collected: Mapping[str, Any], *, step: int, attempt: int, parent: int | None) -> str:
    """The run record of one checkpoint, as JSON with a stable order of fields."""
    # Whole seconds in UTC: the same length in every record.
    created_at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    own = {"step": step, "attempt": attempt, "parent_step": parent, "created_at": created_at}
    return json.dumps({**own, **collected}, indent=1) + "\n"
