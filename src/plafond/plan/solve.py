"""The fastest activation plan under a ceiling."""

from __future__ import annotations

from collections.abc import Callable

from plafond.activations.ladder import Ladder


def fastest(ladder: Ladder, needed: Callable[[int], int], ceiling: int) -> int:
    """The highest rung that fits; 0 when none does.

    Args:
        ladder: plans from the leanest to the fastest.
        needed: device bytes of a rung, by a dry run; it grows from rung to rung.
        ceiling: the most that may be taken.
    """
    low, least = 0, needed(0)
    if least > ceiling:
        return low
    high, most = len(ladder), 0
    while high - low > 1:
        # what blocks keep tells most of what a rung takes; near the answer one below and one above settle it
        rung = _guess(ladder, low, high, ceiling - least, (most - least) if most else None)
        found = needed(rung)
        if found <= ceiling:
            low, least = rung, found
        else:
            high, most = rung, found
    return low


def _guess(ladder: Ladder, low: int, high: int, room: int, between: int | None) -> int:
    """The highest rung between two that takes at most `room` more than the lower one, by what blocks keep.

    Args:
        ladder: the plans.
        low: a rung that fits.
        high: one that does not, or the first that there is not.
        room: bytes.
        between: how much more the higher one takes than the lower one, where it is known.
    """
    first = ladder.size(low)
    goal = float(first + room)
    if between is not None:
        goal = first + room / max(1, between) * (ladder.size(high) - first)
    left, right = low, high
    while right - left > 1:
        middle = (left + right) // 2
        if ladder.size(middle) <= goal:
            left = middle
        else:
            right = middle
    return min(max(left, low + 1), high - 1)
