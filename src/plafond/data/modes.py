"""From any Pillow mode to plain 8-bit RGB.

Pillow's own ``convert("RGB")`` clips 16-bit values at 255, keeps the colours hidden under transparent pixels
and knows nothing about ink: this module does what a viewer would show.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms

WHITE = (255, 255, 255, 255)
"""What transparency is laid on."""

DEEP_MODES = frozenset({"I", "I;16", "I;16L", "I;16B", "I;16N", "F"})
"""Single-channel modes with more than 8 bits."""


def to_rgb(image: Image.Image) -> Image.Image:
    """`image` (any mode) as 8-bit RGB of the same size.

    Transparency is laid on white: the colour stored under a transparent pixel is arbitrary (often black,
    often a rest of the cut-out background), so dropping alpha would train on something that nobody sees. Deep
    greyscale is scaled, not clipped. CMYK goes through its own colour profile when it has one, since ink has
    no colour without.
    """
    if image.mode in DEEP_MODES:
        return Image.fromarray(_to_bytes(np.asarray(image))).convert("RGB")
    if image.mode == "CMYK":
        return _ink_to_rgb(image)
    if image.has_transparency_data:
        picture = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", picture.size, WHITE), picture).convert("RGB")
    return image.convert("RGB")


def _to_bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Deep values (H, W) scaled to 0..255.

    The full scale is the one that the storage implies: 65535 for integers up to there, 1 or 255 for floats.
    Values beyond any of these have no known full scale and are stretched between their own minimum and
    maximum.
    """
    pixels = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = float(pixels.min()), float(pixels.max())
    full_scales = (1.0, 255.0, 65535.0) if values.dtype.kind == "f" else (65535.0,)
    full = next((scale for scale in full_scales if low >= 0 and high <= scale), None)
    if full is None:
        pixels, full = pixels - low, high - low
    return np.rint(pixels * (255.0 / full)).astype(np.uint8)


def _ink_to_rgb(image: Image.Image) -> Image.Image:
    """CMYK to sRGB through the embedded profile; Pillow's plain conversion when none is usable."""
    profile = image.info.get("icc_profile")
    if profile:
        try:
            ink = ImageCms.getOpenProfile(BytesIO(profile))
            converted = ImageCms.profileToProfile(
                image, ink, ImageCms.createProfile("sRGB"), outputMode="RGB"
            )
        except (ImageCms.PyCMSError, OSError, ValueError):
            converted = None
        if converted is not None:
            return converted
    return image.convert("RGB")
