"""How a frozen weight is stored, and how it is unpacked."""

from __future__ import annotations

import torch
from torch import Tensor

PLAIN = ""
"""The layout of a weight that is stored as it is."""


def dense(weight: list[Tensor], layout: str, dtype: torch.dtype) -> Tensor:
    """The weight (out, in) in `dtype`."""
    if layout == PLAIN:
        return weight[0]
    raise ValueError(layout)
