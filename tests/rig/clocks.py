"""A clock that goes on only when it is told to, in place of the one by which periods and costs are measured."""

import pytest

_USERS = ("checkpoint.period", "checkpoint.work_log", "checkpoint.saver")


class Clock:
    """Seconds since some moment."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def go_on(self, seconds: float) -> None:
        """Let so much time pass."""
        self.now += seconds


def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Put one in place."""
    clock = Clock()
    for name in _USERS:
        monkeypatch.setattr(f"keepstep.{name}.monotonic", clock)
    return clock
