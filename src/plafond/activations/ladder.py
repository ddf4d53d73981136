"""From recomputing everything to recomputing nothing, one block at a time.

For one block the choices between bytes and work that are worth looking at lie on a convex curve: between two of its
points no other is cheaper. Blocks that are alike share a curve. A ladder walks down all curves at once, always taking
the step that saves the most work per byte, for one block after the other; so each rung is the fastest plan for the
bytes that it takes, up to less than one step of one block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from plafond.activations.levels import CHEAPEST, KEEP, Level
from plafond.activations.plan import ActivationPlan, Segment

if TYPE_CHECKING:
    from plafond.activations.choose import Choice, Menu

WORTH = 1e-4
"""Corners of a curve that save less than this part of a block's work are passed over."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """What a block keeps at one price: bytes, and FLOP of computing the rest again."""

    level: Level
    size: int
    cost: float


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The choices for one block, from the fewest bytes to the least work.

    Args:
        points: at least one.
        work: FLOP of both passes when nothing is computed twice.
    """

    points: tuple[Point, ...]
    work: float

    def as_json(self) -> dict[str, Any]:
        """For keeping."""
        return asdict(self)

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Curve:
        """What `as_json` gave."""
        points = tuple(Point(**{**point, "level": Level(**point["level"])}) for point in kept["points"])
        return cls(points=points, work=kept["work"])


def curve_of(menu: Menu, balance: float) -> Curve:
    """The convex curve of a block.

    Args:
        menu: what it can keep.
        balance: FLOP that the device does while it moves one byte.
    """

    def at(price: float) -> Choice:
        return menu.choose(Level(kind="selective", price=price, balance=balance))

    work = menu.work(balance)
    leanest, richest = at(CHEAPEST), menu.choose(KEEP)
    inner = _between(at, leanest, richest, WORTH * work)
    corners = [leanest]
    for choice in (*inner, richest):
        if choice.size > corners[-1].size and choice.cost < corners[-1].cost:
            corners.append(choice)
    slopes = [(one.cost - two.cost) / (two.size - one.size) for one, two in pairwise(corners)]
    edges = [CHEAPEST, *slopes]
    points = []
    for corner, (above, below) in zip(corners, pairwise([*edges, edges[-1]]), strict=True):
        # inside the range of prices in which the corner is the best
        price = (above * below) ** 0.5
        level = KEEP if corner is richest else Level(kind="selective", price=price, balance=balance)
        points.append(Point(level=level, size=corner.size, cost=corner.cost))
    return Curve(points=tuple(points), work=work)


def _between(at: Callable[[float], Choice], lean: Choice, rich: Choice, least: float) -> list[Choice]:
    """Corners between two choices: what is best at the price at which the two are equal.

    Corners that are better than the two by less than `least` FLOP are passed over.
    """
    if rich.size <= lean.size or lean.cost <= rich.cost:
        return []
    price = (lean.cost - rich.cost) / (rich.size - lean.size)
    middle = at(price)
    gain = (lean.cost + price * lean.size) - (middle.cost + price * middle.size)
    if gain <= least:
        return []
    return [*_between(at, lean, middle, least), middle, *_between(at, middle, rich, least)]


def leanest(balance: float) -> ActivationPlan:
    """The lowest rung of every ladder, whose other rungs are not known yet."""
    return ActivationPlan(name="leanest", default=Level(kind="selective", price=CHEAPEST, balance=balance))


class Ladder:
    """Plans from the leanest (0) to the fastest.

    Args:
        curves: of a block of each group.
        depths: blocks of each group.
    """

    def __init__(self, curves: Mapping[str, Curve], depths: Mapping[str, int]):
        self.curves = curves
        self.depths = {group: depths[group] for group in curves}
        self._steps = sorted(
            (
                (one.cost - two.cost) / (two.size - one.size),
                group,
                index,
            )
            for group, curve in curves.items()
            for index, (one, two) in enumerate(pairwise(curve.points))
        )[::-1]

    def __len__(self) -> int:
        return 1 + sum(self.depths[group] for _, group, _ in self._steps)

    def _taken(self, rung: int) -> dict[str, tuple[int, int]]:
        """For each group the point that all blocks have reached, and how many have gone one further."""
        taken = dict.fromkeys(self.curves, (0, 0))
        for _, group, index in self._steps:
            if rung <= 0:
                break
            count = min(rung, self.depths[group])
            rung -= count
            taken[group] = (index + 1, 0) if count == self.depths[group] else (index, count)
        return taken

    def plan(self, rung: int) -> ActivationPlan:
        """The plan of a rung. Blocks that keep more stand last: their backward pass is the first to free it."""
        groups: dict[str, tuple[Segment, ...]] = {}
        for group, (point, further) in self._taken(rung).items():
            points, depth = self.curves[group].points, self.depths[group]
            segments = [(points[point].level, depth - further)]
            if further:
                segments.append((points[point + 1].level, further))
            groups[group] = tuple(segments)
        default = next(iter(groups.values()))[0][0]
        return ActivationPlan(name=f"rung {rung} of {len(self) - 1}", default=default, groups=groups)

    def _total(self, rung: int, attribute: str) -> float:
        total = 0.0
        for group, (point, further) in self._taken(rung).items():
            points, depth = self.curves[group].points, self.depths[group]
            total += getattr(points[point], attribute) * (depth - further)
            if further:
                total += getattr(points[point + 1], attribute) * further
        return total

    def size(self, rung: int) -> int:
        """Bytes that the blocks keep."""
        return int(self._total(rung, "size"))

    def slowdown(self, rung: int) -> float:
        """Time of both passes through the blocks, relative to computing nothing twice."""
        return 1 + self._total(rung, "cost") / self._work

    @cached_property
    def _work(self) -> float:
        return sum(curve.work * self.depths[group] for group, curve in self.curves.items())
