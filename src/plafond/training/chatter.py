"""Keep what libraries print away from the user's terminal.

torchao, bitsandbytes, transformers and diffusers print, warn and draw progress bars while they are imported and
used, from Python and from C++. Inside `to_log`, file descriptors 1 and 2 point to the run's log, and plafond itself
writes to a duplicate of the terminal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


@contextmanager
def to_log(log: Path) -> Iterator[TextIO]:
    """Send all output to `log` (appended) and yield a stream that still reaches the user's standard error.

    When an exception leaves the block, output is back to normal before anyone prints it.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    terminal = os.fdopen(os.dup(saved[1]), "w", encoding="utf-8", errors="replace")
    try:
        yield terminal
    finally:
        terminal.close()
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(saved[0], 1)
        os.dup2(saved[1], 2)
        for descriptor in saved:
            os.close(descriptor)
