"""What can be chosen for a Trainer under keepstep."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from keepstep.config.checkpointing import CheckpointingConfig, GuardPolicy, StopSignal
from keepstep.config.retention import Keep
from keepstep.errors import ConfigError
from keepstep.plan.policies import Rules, rules_of


@dataclass(frozen=True)
class Options:
    """All have the meaning of the field of the same name in `CheckpointingConfig`, where there is one.

    Attributes:
        mode: "sync": `train()` waits until a checkpoint is committed; "async": it goes on as soon as the state is
            copied, and files are written beside it.
        accept: differences to the checkpoint that a resume accepts: "field=value", or "field" for what it is now.
        auto_resume: `train()` without `resume_from_checkpoint` resumes too, where there is a checkpoint.
        handle_signals: on a stop signal the step is saved and `train()` raises `StopRequested`. None: yes, but not in
            a notebook.
        mirror: where checkpoints are copied to; a folder named after output_dir is made there. `hf://user/repo` is the
            run's own. A resume fetches them whole.
        keep: what remains beside the `save_total_limit` newest.
        push_timeout_seconds: the longest that one push to the Hub may take, and that the end of `train()` waits for
            what is being pushed. A push that takes longer is given up; the next save pushes again.
    """

    mode: Literal["sync", "async"] = "sync"
    accept: Sequence[str] = ()
    guards: Mapping[str, GuardPolicy] = field(default_factory=dict)
    on_damage: Literal["fall_back", "stop"] = "fall_back"
    on_save_error: Literal["stop", "continue"] = "stop"
    max_failed_saves: int = 3
    auto_resume: bool = False
    handle_signals: bool | None = None
    stop_signals: Sequence[StopSignal] = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2")
    hang_seconds: float = 600.0
    timeout_seconds: float = 7200.0
    push_timeout_seconds: float = 1800.0
    mirror: Any = ()
    keep: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not self.push_timeout_seconds > 0:
            raise ConfigError(f"push_timeout_seconds must be more than 0 seconds, not {self.push_timeout_seconds}")

    def config(self, folder: str, num_to_keep: int | None) -> CheckpointingConfig:
        """The same as a configuration. Raises ConfigError (a pydantic error names the field)."""
        return CheckpointingConfig(
            save_dir=folder,
            period_steps=1,
            num_to_keep=num_to_keep,
            keep=self._keep(),
            mode=self.mode,
            guards=dict(self.guards),
            on_damage=self.on_damage,
            on_save_error=self.on_save_error,
            max_failed_saves=self.max_failed_saves,
            stop_signals=tuple(self.stop_signals),
            hang_seconds=self.hang_seconds,
            timeout_seconds=self.timeout_seconds,
            mirror=self.mirror,
        )

    @property
    def rules(self) -> Rules:
        """What remains beside the newest."""
        return rules_of(self._keep())

    def _keep(self) -> Keep | None:
        return None if self.keep is None else Keep.model_validate(self.keep)

    @property
    def takes_signals(self) -> bool:
        """Whether stop signals are taken over."""
        return not _is_notebook() if self.handle_signals is None else self.handle_signals


def _is_notebook() -> bool:
    return "ipykernel" in sys.modules
