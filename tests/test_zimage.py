"""The Z-Image family."""

from __future__ import annotations

from pathlib import Path

from diffusers import ZImagePipeline

import micro_zimage
from family_checks import FamilyChecks


class TestZImage(FamilyChecks):
    arch = "zimage:turbo"
    pipeline = ZImagePipeline
    options = {"guidance_scale": 0.0}  # noqa: RUF012
    encoder_parameters = 4_022_468_096

    @staticmethod
    def make_checkpoint(folder: Path) -> Path:
        return micro_zimage.make_checkpoint(folder)
