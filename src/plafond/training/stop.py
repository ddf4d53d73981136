"""Ctrl-C and SIGTERM: finish the step, save, leave."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType

from plafond.errors import Interrupted
from plafond.language.said import N_


class StopSignal:
    """Notes the first signal for the loop to act on; a second one interrupts at once.

    While `gentle` is false (loading, caching: nothing to save) the first signal already interrupts.
    """

    def __init__(self) -> None:
        self.requested = False
        self.gentle = False
        self._previous: dict[int, object] = {}

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested or not self.gentle:
            raise Interrupted(
                N_("interrupted; what was cached and saved so far is kept, start the job again to go on")
            )
        self.requested = True
