"""The mean loss since the last log line, as state: a stop in between changes no logged number."""

import torch


class MeanLoss:
    """Mean of per-step losses, kept in float64 on the device, so that no step waits for it."""

    def __init__(self, device: torch.device) -> None:
        self._sum = torch.zeros((), dtype=torch.float64, device=device)
        self._count = 0

    def update(self, loss: torch.Tensor) -> None:
        """Add one step's loss; all ranks must pass the same value."""
        self._sum += loss.detach().double()
        self._count += 1

    def read(self) -> float:
        """The mean since the last read, and start anew."""
        mean = self._sum.item() / max(1, self._count)
        self._sum.zero_()
        self._count = 0
        return mean

    def state_dict(self) -> dict[str, object]:
        return {"sum": self._sum, "count": self._count}

    def load_state_dict(self, state: dict[str, object]) -> None:
        value = state["sum"]
        if not isinstance(value, torch.Tensor) or not isinstance(state["count"], int):
            raise TypeError("the saved state of the mean loss has another form")
        self._sum.copy_(value)
        self._count = state["count"]
