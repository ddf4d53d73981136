"""Python's garbage collector, out of the way of a dry run.

Importing this module does not load torch.
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache


@contextmanager
def paused() -> Iterator[None]:
    """No automatic collections inside the ``with`` block.

    A dry run makes small objects by the hundred thousand next to the million of torch and diffusers, all of which each
    full collection walks through: half of a plan's time. Nothing depends on them, since tensors die by their reference
    counts, and without them what a trace says cannot depend on when one happens to run.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    _set_aside()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@cache
def _set_aside() -> None:
    """Let all later collections pass over what is imported by now, and the interpreter's last over everything."""
    gc.freeze()
    atexit.register(gc.freeze)
