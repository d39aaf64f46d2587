"""Collects the run record: what one must know later to tell one checkpoint from another."""

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata as packages
from pathlib import Path
from typing import Any

import torch

SCHEMA_VERSION = 1
_PACKAGES = ("torch", "transformers", "trl", "numpy", "keepstep")


@dataclass(frozen=True)
class RunFacts:
    """What only the job knows about itself.

    Attributes:
        run_name: name of the run, None for an inference job.
        config: the whole resolved configuration, as plain containers.
        seed: the base seed.
        base_model: where the first weights came from.
        base_weights: a digest of them, where they are needed again at a resume.
        global_batch_size: samples in one step.
        mesh: ranks on each axis.
    """

    run_name: str | None = None
    config: Mapping[str, Any] | None = None
    seed: int | None = None
    base_model: str | None = None
    base_weights: str | None = None
    global_batch_size: int | None = None
    mesh: Mapping[str, int] = field(default_factory=dict)


def collect(facts: RunFacts, world_size: int) -> dict[str, Any]:
    """Everything that stays the same over one attempt. Works outside git and offline; unknown fields are null."""
    git = _git()
    collected = {
        "schema": SCHEMA_VERSION,
        "run": facts.run_name,
        "base_model": facts.base_model,
        "base_weights": facts.base_weights,
        "seed": facts.seed,
        "global_batch_size": facts.global_batch_size,
        "world_size": world_size,
        "mesh": dict(facts.mesh),
        "config_sha256": None if facts.config is None else _sha256(facts.config),
        "git_commit": git[0],
        "git_dirty": git[1],
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cpu": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
        "config": facts.config,
    }
    json.dumps(collected)  # what cannot be written is refused here, before anything else is
    return collected


def to_text(collected: Mapping[str, Any], *, step: int, attempt: int, parent: int | None) -> str:
    """The run record of one checkpoint, as JSON with a stable order of fields."""
    # Whole seconds in UTC: the same length in every record.
    created_at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    own = {"step": step, "attempt": attempt, "parent_step": parent, "created_at": created_at}
    return json.dumps({**own, **collected}, indent=1) + "\n"


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _version(package: str) -> str | None:
    try:
        return packages.version(package)
    except packages.PackageNotFoundError:
        return None


def _git() -> tuple[str | None, bool | None]:
    """Commit and dirty flag of the working tree that the job was started in."""
    try:
        commit = _ask_git("rev-parse", "HEAD")
        return commit, bool(_ask_git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None, None


def _ask_git(*arguments: str) -> str:
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    done = subprocess.run(
        ["git", *arguments], cwd=Path.cwd(), env=environment, capture_output=True, text=True, timeout=10, check=True
    )
    return done.stdout.strip()
