"""The Qwen-Image family."""

from __future__ import annotations

from pathlib import Path

from diffusers import QwenImagePipeline
from torch import Tensor

import micro_qwen_image
from family_checks import FamilyChecks


class TestQwenImage(FamilyChecks):
    arch = "qwen_image:2512"
    pipeline = QwenImagePipeline
    options = {"true_cfg_scale": 1.0}  # noqa: RUF012
    scale = "true_cfg_scale"
    encoder_parameters = 7_070_619_136

    @staticmethod
    def make_checkpoint(folder: Path) -> Path:
        return micro_qwen_image.make_checkpoint(folder)

    def unpack(self, latents: Tensor, height: int, width: int) -> Tensor:
        return QwenImagePipeline._unpack_latents(latents, height, width, 8)[:, :, 0]
