"""Random numbers as a function of where they are used.

Nothing in a run draws from a stream that has a position: every draw is seeded by the job's seed and the step,
micro-batch and purpose it serves. A resumed run therefore needs no saved generator state, a replayed step sees the
same noise, and the draws do not depend on the device.
"""

from __future__ import annotations

import hashlib

import torch


def derived_seed(seed: int, purpose: str, *position: int) -> int:
    """A 63-bit seed for one purpose at one position, for instance ``("noise", step, micro)``."""
    text = ":".join([str(seed), purpose, *map(str, position)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, purpose: str, *position: int) -> torch.Generator:
    """A CPU generator that starts at `derived_seed`."""
    return torch.Generator().manual_seed(derived_seed(seed, purpose, *position))
