"""Progress on the terminal: one bar on the main process, none where there is no terminal."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from keepstep.plan.throughput import Throughput, throughput_text

# Log lines go through the same console, so that they do not break the bar.
console = Console(stderr=True)


class Advance(Protocol):
    """Called after each step with a short text."""

    def __call__(self, text: str, /) -> None: ...


class SampleProgress:
    """Rate and time left of a pass over samples. What earlier attempts have done is not counted in the rate.

    Args:
        position: samples that are done.
        total: all samples.
        clock: seconds.
    """

    def __init__(self, position: int, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._position, self._total, self._clock = position, total, clock
        self._at = clock()
        self._throughput = Throughput()

    def at(self, position: int) -> str:
        """Tell how many samples are done now. Returns rate and time left in words."""
        now = self._clock()
        self._throughput = self._throughput.after(position - self._position, now - self._at)
        self._position, self._at = position, now
        return throughput_text(self._throughput, self._total - position)


@contextmanager
def progress_bar(title: str, start: int, total: int, *, shown: bool, is_timed: bool = True) -> Iterator[Advance]:
    """A bar that begins at `start`; its speed counts only new steps.

    Args:
        title: what is under way.
        start, total: steps.
        shown: on this rank.
        is_timed: show the time that is left; without it the text tells.
    """
    if not (shown and console.is_terminal):
        yield lambda text: None
        return
    columns: list[ProgressColumn] = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
    if is_timed:
        columns.append(TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[text]}"), console=console) as progress:
        bar = progress.add_task(title, total=total, completed=start, text="")

        def advance(text: str) -> None:
            progress.advance(bar)
            if text:
                progress.update(bar, text=text)

        yield advance
