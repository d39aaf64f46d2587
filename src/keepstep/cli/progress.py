"""A bar on stderr for work on many bytes. Work that is over at once shows none, and imports nothing for it."""

import sys
import time
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_PATIENCE = 0.5
_EVERY = 0.1


class Bar:
    """Shows how far something is, once it has taken half a second, if stderr is a terminal."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._next = time.monotonic() + _PATIENCE if sys.stderr.isatty() else float("inf")
        self._closing = ExitStack()
        self._bar: tuple[Progress, TaskID] | None = None

    def __call__(self, done: int, total: int) -> None:
        """Tell it that `done` of `total` bytes are dealt with."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _EVERY
        if self._bar is None:
            self._bar = self._start(total)
        progress, task = self._bar
        progress.update(task, completed=done, total=total)

    def _start(self, total: int) -> "tuple[Progress, TaskID]":
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = TextColumn(self._text), BarColumn(), DownloadColumn(), TimeRemainingColumn()
        progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._closing.enter_context(progress)
        return progress, progress.add_task(self._text, total=total)

    def __enter__(self) -> "Bar":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()
