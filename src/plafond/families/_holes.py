"""Holes in pictures, for models that complete them: masks (B, 1, h, w) on the grid of latents, in main memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CELLS = 6
"""Cells a side of the noise whose hills are the holes."""
COVER = (0.2, 0.8)
"""The smallest and the greatest share of a picture that its hole takes."""
KERNELS = (3, 5, 7)
"""Sides of the windows by which masks are blurred."""


def holes(count: int, height: int, width: int, dice: torch.Generator) -> Tensor:
    """Smooth blobs of ones, each mask with its own share of the picture."""
    import torch
    from torch.nn.functional import interpolate

    hills = interpolate(
        torch.randn(count, 1, CELLS, CELLS, generator=dice), size=(height, width), mode="bicubic"
    )
    low, high = COVER
    cover = low + (high - low) * torch.rand(count, generator=dice)
    limits = [hill.flatten().quantile(1 - share) for hill, share in zip(hills, cover, strict=True)]
    return (hills > torch.stack(limits).view(-1, 1, 1, 1)).float()


def blurred(masks: Tensor, dice: torch.Generator) -> Tensor:
    """Masks with soft edges; all by one window, drawn from `KERNELS`, applied twice."""
    import torch

    side = KERNELS[int(torch.randint(len(KERNELS), (), generator=dice))]
    return boxed(boxed(masks, side), side)


def boxed(masks: Tensor, side: int) -> Tensor:
    """The mean over a window of `side` (odd) cells around each cell, as far as it lies in the picture."""
    from torch.nn.functional import avg_pool2d

    return avg_pool2d(masks, side, stride=1, padding=side // 2, count_include_pad=False)


def opacity(path: Path, height: int, width: int) -> Tensor | None:
    """Where a picture is opaque, (1, 1, height, width) from 0 to 1, fitted as its pixels are; None without alpha."""
    import numpy as np
    import torch
    from PIL import Image, ImageOps

    from plafond.memory.residence import host_memory

    with Image.open(path) as image:
        if not image.has_transparency_data:
            return None
        alpha = image.convert("RGBA").getchannel("A")
    with host_memory():
        fitted = ImageOps.fit(alpha, (width, height), Image.Resampling.BOX)
        return torch.from_numpy(np.array(fitted))[None, None].float() / 255
