"""How long work reports its progress, without knowing who shows it."""

from __future__ import annotations

from collections.abc import Callable

Report = Callable[[int, int], None]
"""Called with how much is done and how much there is in all."""


def silent(done: int, total: int) -> None:
    """A report that nobody reads."""
