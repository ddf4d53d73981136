"""Aspect buckets: the size that a picture is trained at.

AI Toolkit's rule, in exact integer arithmetic. Given a picture of `w` x `h` pixels, a `resolution` and a
`divisor` (the number of pixels that both sides must be a multiple of, given by the model family):

1. The target area is ``min(w * h, resolution²)``: a picture is never enlarged.
2. Both sides are scaled to that area and expressed in units of the divisor; each is rounded down and up,
   which makes four candidates.
3. Candidates with an empty side or with more than ``resolution²`` pixels are dropped, and the one whose area
   is closest to the target area wins; on a tie the one that was rounded down. The aspect ratio does not take
   part, so a square picture may get a bucket that is one unit off square. When none is left (a sliver thinner
   than one unit) its short side is one unit and its long side is rounded down, to `resolution²` pixels at
   most.

The picture is then resized to cover its bucket and cropped to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plafond.job.dataset import DatasetConfig


@dataclass(frozen=True, order=True)
class Bucket:
    """One training size in pixels, of so many frames. Its text is ``1024x768``, that of a clip ``832x480x81f``."""

    width: int
    height: int
    frames: int = 1

    @property
    def pixels(self) -> int:
        """Pixels of all frames."""
        return self.width * self.height * self.frames

    def __str__(self) -> str:
        return f"{self.width}x{self.height}" + (f"x{self.frames}f" if self.frames > 1 else "")


def bucket_for(width: int, height: int, resolution: int, divisor: int) -> Bucket:
    """The bucket of a `width` x `height` picture at `resolution`; both sides are multiples of `divisor`.

    All lengths are pixels. A picture smaller than one unit gets one unit, the only case that enlarges it by
    more than the rounding to a multiple of `divisor`.
    """
    limit = resolution * resolution
    area = width * height
    target = min(area, limit)
    widths = _around(width, target, area, divisor)
    heights = _around(height, target, area, divisor)
    candidates = [Bucket(w, h) for w in widths for h in heights if 0 < w * h <= limit]
    if candidates:
        return min(candidates, key=lambda bucket: abs(bucket.pixels - target))
    # A sliver: its short side is held open at one unit, so its long side gives way, or it would pass the
    # limit.
    longest = max(limit // divisor // divisor * divisor, divisor)
    return Bucket(min(max(widths[0], divisor), longest), min(max(heights[0], divisor), longest))


def square_bucket(width: int, height: int, resolution: int, divisor: int) -> Bucket:
    """The square bucket of side `resolution`, or of the picture's short side when that is smaller."""
    side = min(width, height, resolution) // divisor * divisor
    return Bucket(max(side, divisor), max(side, divisor))


def bucket_of(width: int, height: int, dataset: DatasetConfig, resolution: int, divisor: int) -> Bucket:
    """The bucket that `dataset`'s own keys (`scale`, `buckets`, `square_crop`) ask for."""
    width, height = max(1, int(width * dataset.scale)), max(1, int(height * dataset.scale))
    if dataset.square_crop or not dataset.buckets:
        return square_bucket(width, height, resolution, divisor)
    return bucket_for(width, height, resolution, divisor)


def _around(side: int, target: int, area: int, divisor: int) -> tuple[int, ...]:
    """`side` scaled by sqrt(`target` / `area`), to multiples of `divisor`: down and, if inexact, up."""
    squared, unit = side * side * target, area * divisor * divisor
    low = isqrt(squared // unit)
    exact = low * low * unit == squared
    return (low * divisor,) if exact else (low * divisor, (low + 1) * divisor)
