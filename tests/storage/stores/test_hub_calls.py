"""Calls of the Hub's client that may be made again."""

import pytest

from keepstep.storage.stores import hub_calls
from keepstep.storage.stores.hub_calls import ask


def test_a_session_that_another_thread_has_closed_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_calls, "FIRST_PAUSE", 0.001)
    tries: list[int] = []

    def call() -> str:
        tries.append(1)
        if len(tries) < 3:
            session = None
            return str(session.request("GET", "x"))  # type: ignore[attr-defined]
        return "done"

    assert ask("look", call) == "done"
    assert len(tries) == 3


def test_another_fault_of_ours_is_none_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_calls, "FIRST_PAUSE", 0.001)
    tries: list[int] = []

    def call() -> str:
        tries.append(1)
        return str([].nothing)  # type: ignore[attr-defined]

    with pytest.raises(OSError, match="AttributeError"):
        ask("look", call)
    assert len(tries) == 1
