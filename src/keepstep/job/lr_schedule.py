"""The configured learning-rate curve, applied to an optimizer."""

import torch

from keepstep.config.training import LRSchedulerConfig
from keepstep.plan.schedule import factor, segments


class PhaseLR:
    """Sets each group's learning rate to its base rate times the factor of the completed steps.

    Only the position is state. Base rates, phases and total_steps are the present configuration's, so a raised
    total_steps moves the phases that are set in percent.

    Args:
        optimizer: its groups' present rates are the base rates.
        config: the phases.
        total_steps: the last step.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, config: LRSchedulerConfig, total_steps: int) -> None:
        self._optimizer = optimizer
        self._base = [float(group["lr"]) for group in optimizer.param_groups]
        self._segments = segments(config, total_steps)
        self._completed = 0
        self._apply()

    def step(self) -> None:
        """Count one completed optimizer step."""
        self._completed += 1
        self._apply()

    def get_last_lr(self) -> list[float]:
        """The rate of each group that the next optimizer step uses."""
        return [base * factor(self._segments, self._completed) for base in self._base]

    def state_dict(self) -> dict[str, int]:
        """The position."""
        return {"completed_steps": self._completed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to a saved position and set the rates for it."""
        self._completed = state["completed_steps"]
        self._apply()

    def _apply(self) -> None:
        for group, rate in zip(self._optimizer.param_groups, self.get_last_lr(), strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
