"""Progress on the terminal: one bar on the main process, none where there is no terminal."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

# Log lines go through the same console, so that they do not break the bar.
console = Console(stderr=True)


class Advance(Protocol):
    """Called after each step with a short text."""

    def __call__(self, text: str, /) -> None: ...


@contextmanager
def progress_bar(title: str, start: int, total: int, *, shown: bool) -> Iterator[Advance]:
    """A bar that begins at `start`; its speed counts only new steps."""
    if not (shown and console.is_terminal):
        yield lambda text: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[text]}"), console=console) as progress:
        bar = progress.add_task(title, total=total, completed=start, text="")

        def advance(text: str) -> None:
            progress.advance(bar)
            if text:
                progress.update(bar, text=text)

        yield advance
