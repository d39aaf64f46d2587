"""The one line about a folder that goes with the machine."""

import logging
from pathlib import Path
from typing import Any

import pytest

from keepstep.checkpoint import checkpointer, volatile
from tests.rig.tiny import Tiny, train

LINE = "lies on overlay (a container's own layer), which goes with the machine, and there is no mirror"


@pytest.fixture(autouse=True)
def _on_overlay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volatile, "volatile", lambda folder: "overlay (a container's own layer)")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING and LINE in r.getMessage()]


def test_a_run_says_it_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(Tiny(str(tmp_path), total=4, period=2))
    (line,) = lines(caplog)
    assert str(tmp_path / "tiny") in line


def test_a_run_that_saves_nothing_loses_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(Tiny(str(tmp_path), total=4, period="disable"))
    assert lines(caplog) == []


def test_a_mirror_is_enough(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    warn = volatile.warn_if_volatile
    monkeypatch.setattr(
        checkpointer, "warn_if_volatile", lambda folder, world, has_mirror: warn(folder, world, has_mirror=True)
    )
    train(Tiny(str(tmp_path), total=4, period=2))
    assert lines(caplog) == []
