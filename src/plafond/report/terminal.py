"""What the user sees while a run goes on: one live line in a terminal, a line now and then in a pipe."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from plafond.data.progress import Report
from plafond.language.said import N_, Number, Said, Speak, Value

PIPE_SECONDS = 10.0
"""Without a terminal, progress is printed at most this often."""

PATIENCE = 2.0
"""Work that is over sooner shows no progress."""

WARNING = N_("warning: {text}")
TRAINING = Said(N_("training"))
LEFT = N_("{done}/{total}  {time} left")
DONE = N_("{title}: {done}/{total}")
STEP = N_("{step}/{total}  loss {loss}  {rate}  {time} left")
FAST, SLOW = N_("{number} it/s"), N_("{number} s/it")
STEP_LINE = N_("step {note}")


class Terminal:
    """Progress and notes of one run; a context manager.

    Args:
        stream: where they are shown.
        log: takes each line, too, in English, whatever is shown.
        speak: puts what is shown into words.
    """

    def __init__(self, stream: TextIO, log: TextIO | None = None, speak: Speak = str):
        self._log, self.speak = log, speak
        self.console = Console(file=stream, highlight=False, soft_wrap=True)
        self.live = self.console.is_terminal
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[note]}"),
            console=self.console,
            disable=not self.live,
            transient=True,
            # rich would carry what libraries print past the log and onto the terminal
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._printed = 0.0
        self._times: deque[float] = deque(maxlen=20)

    def __enter__(self) -> Terminal:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()
        if kind is not None:
            self._keep(": ".join([kind.__name__, *getattr(error, "__notes__", ()), str(error)]))

    def note(self, text: str | Said) -> None:
        """Print one line."""
        self._keep(str(text))
        self.console.print(self.speak(text), markup=False)

    def _keep(self, text: str) -> None:
        if self._log is not None:
            self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
            self._log.flush()

    def warn(self, text: str | Said) -> None:
        """Print one warning."""
        warning = Said(WARNING, {"text": text})
        self._keep(str(warning))
        line, said = self.speak(warning), self.speak(text)
        self.console.print(Text(line.removesuffix(said), "yellow"), Text(said), sep="")

    @contextmanager
    def doing(self, title: str | Said) -> Iterator[None]:
        """Show that something without steps is going on inside the ``with`` block."""
        task = self.progress.add_task(self.speak(title), total=None, note="")
        if self.live:
            self._keep(str(title))
        else:
            self.note(title)
        try:
            yield
        finally:
            self.progress.remove_task(task)

    def phase(self, title: str | Said) -> Report:
        """A hook ``(done, total)`` that shows the progress of one phase."""
        started = self._printed = time.monotonic()
        task: list[TaskID] = []
        known: list[int] = []

        def show(done: int, total: int) -> None:
            if not known and done < total:
                known.append(done)
                self._keep(str(Said(DONE, {"title": title, "done": done, "total": total})))
            if done >= total:
                while task:
                    self.progress.remove_task(task.pop())
            elif self.live and time.monotonic() - started > PATIENCE:
                if not task:
                    task.append(self.progress.add_task(self.speak(title), total=total, note=""))
                left = (time.monotonic() - started) / max(done, 1) * (total - done)
                values: dict[str, Value] = {"done": done, "total": total, "time": _duration(left)}
                note = self.speak(Said(LEFT, values)) if done else f"{done}/{total}"
                self.progress.update(task[0], completed=done, note=note)
            elif not self.live and self._due():
                self.note(Said(DONE, {"title": title, "done": done, "total": total}))

        return show

    def training(self, start: int, total: int, every: int) -> Callable[[int, float], None]:
        """A hook ``(step, loss)`` that shows the training's progress; in a pipe at least after `every` steps."""
        task = self.progress.add_task(self.speak(TRAINING), total=total, completed=start, note="")
        self._times.append(time.monotonic())

        def show(step: int, loss: float) -> None:
            self._times.append(time.monotonic())
            seconds = (self._times[-1] - self._times[0]) / (len(self._times) - 1)
            fast = seconds < 1
            rate = Said(FAST if fast else SLOW, {"number": Number(1 / seconds if fast else seconds, 2)})
            left = _duration(seconds * (total - step))
            values: dict[str, Value] = {
                "step": step,
                "total": total,
                "loss": Number(loss, 4),
                "rate": rate,
                "time": left,
            }
            note = Said(STEP, values)
            if self.live:
                self.progress.update(task, completed=step, note=self.speak(note))
            line = Said(STEP_LINE, {"note": note})
            if not self.live and (step % every == 0 or self._due() or step == total):
                self.note(line)
            elif self.live and (step % every == 0 or step == total):
                self._keep(str(line))

        return show

    def _due(self) -> bool:
        now = time.monotonic()
        if now - self._printed < PIPE_SECONDS:
            return False
        self._printed = now
        return True


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
