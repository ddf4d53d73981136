"""How much of a block's results is kept for its backward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["keep", "selective", "attention", "recompute", "offload"]

CHEAPEST = 1e5
"""FLOP per byte: results that cost this much are kept by every level, if they are small. A modulation vector is a few
KiB and takes a pass over a weight of 100 MB; no activation of a token sequence comes near."""


@dataclass(frozen=True, kw_only=True)
class Level:
    """What one block keeps.

    Args:
        kind: ``keep``: whatever its backward pass reads; ``selective``: what is worth its memory at `price`;
            ``attention``: its inputs and the results of attention; ``recompute``: its inputs; ``offload``: its inputs,
            in main memory.
        price: for ``selective``: FLOP that a kept byte has to save. A result is kept when computing it again would
            cost more.
        balance: FLOP that the device does in the time in which it moves one byte; elementwise operations are counted
            by the bytes that they move.
    """

    kind: Kind
    price: float = 0.0
    balance: float = 100.0

    def __str__(self) -> str:
        return f"{self.kind} at {self.price:.3g} FLOP/byte" if self.kind == "selective" else self.kind


KEEP = Level(kind="keep")
RECOMPUTE = Level(kind="recompute")
