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
    low, high = 0, len(ladder) - 1
    least, most = needed(low), needed(high)
    if most <= ceiling:
        return high
    if least > ceiling:
        return low
    while high - low > 1:
        rung = _guess(ladder, low, high, (ceiling - least) / max(1, most - least))
        found = needed(rung)
        if found <= ceiling:
            low, least = rung, found
        else:
            high, most = rung, found
    return low


def _guess(ladder: Ladder, low: int, high: int, share: float) -> int:
    """The highest rung between two that takes at most a share of the way between them, by what blocks keep."""
    first, last = ladder.size(low), ladder.size(high)
    goal = first + share * (last - first)
    left, right = low, high
    while right - left > 1:
        middle = (left + right) // 2
        if ladder.size(middle) <= goal:
            left = middle
        else:
            right = middle
    return min(max(left, low + 1), high - 1)
