"""Random numbers that are a function of what they are for, never of what was drawn before."""

from __future__ import annotations

import hashlib
import random


def chance(*parts: str | int) -> random.Random:
    """A generator seeded by `parts`: the same on every machine and in every process.

    ``chance(seed, "order", epoch)`` needs no state to be saved: resuming a run asks for the same parts again.
    """
    text = "\0".join(f"{type(part).__name__}:{part}" for part in parts)
    digest = hashlib.sha256(text.encode("utf-8", errors="surrogateescape")).digest()
    return random.Random(int.from_bytes(digest, "big"))
