"""A progress bar for work that may be over at once or take an hour."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Report = Callable[[int, int], None]
"""Called with how much is done and how much there is in all."""

PATIENCE = 2.0
"""Seconds of work before a bar appears."""


def silent(done: int, total: int) -> None:
    """A report that nobody reads."""


@contextmanager
def progress_bar(label: str, console: Console | None = None) -> Iterator[Report]:
    """A report that draws a bar on stderr once the work has lasted `PATIENCE`; in a pipe it draws nothing."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield silent
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task(label, total=None)
    start = time.monotonic()

    def report(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)
        if not bar.live.is_started and time.monotonic() - start > PATIENCE:
            bar.start()

    try:
        yield report
    finally:
        bar.stop()
