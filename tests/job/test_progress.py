import io

import pytest
from rich.console import Console

from keepstep.job import progress
from keepstep.job.progress import SampleProgress, progress_bar


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_right_after_a_resume_only_new_samples_count() -> None:
    clock = Clock()
    pace = SampleProgress(900_000, 1_000_000, clock)
    clock.now += 2.0
    assert pace.at(900_100) == "50 samples/s, 0:33:18 left"
    # What was done first counts a little less already: 300 samples in 3 seconds would be 0:16:37.
    clock.now += 1.0
    assert pace.at(900_300) == "100 samples/s, 0:16:34 left"


def test_a_slow_first_step_is_soon_forgotten() -> None:
    clock = Clock()
    pace = SampleProgress(0, 100_000, clock)
    clock.now += 60.0
    pace.at(10)
    for step in range(2, 400):
        clock.now += 1.0
        text = pace.at(10 * step)
    assert text.startswith("9.8")


def test_the_last_sample_leaves_nothing() -> None:
    clock = Clock()
    pace = SampleProgress(0, 10, clock)
    clock.now += 1.0
    assert pace.at(10) == "10 samples/s, 0:00:00 left"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    text = io.StringIO()
    monkeypatch.setattr(progress, "console", Console(file=text, force_terminal=True, width=100))
    return text


@pytest.mark.parametrize("is_timed", [True, False])
def test_the_bar_shows_steps_and_text(terminal: io.StringIO, is_timed: bool) -> None:
    with progress_bar("inference", 5, 10, shown=True, is_timed=is_timed) as advance:
        advance("50 samples/s, 0:33:18 left")
    assert " 6/10" in terminal.getvalue()
    assert "50 samples/s, 0:33:18 left" in terminal.getvalue()
    assert ("-:--:--" in terminal.getvalue()) is is_timed


def test_only_the_main_process_shows_one(terminal: io.StringIO) -> None:
    with progress_bar("inference", 5, 10, shown=False) as advance:
        advance("text")
    assert terminal.getvalue() == ""
