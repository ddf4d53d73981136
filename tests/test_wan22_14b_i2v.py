"""The Wan 2.2 family of image to video: two experts and a first frame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import micro_wan
from first_frame_checks import FirstFrameChecks


class TestWan22I2V(FirstFrameChecks):
    arch = "wan22_14b_i2v"
    latent = (16, 1, 8, 8)
    encoder_parameters = 5_680_910_336

    @staticmethod
    def make_checkpoint(folder: Path) -> Path:
        return micro_wan.make_checkpoint(folder, boundary=0.9, in_channels=36)

    def prepare(self, transformer: Any, sigma: torch.Tensor) -> None:
        transformer.turn("high_noise" if sigma.item() >= 0.9 else "low_noise")

    def load_lora(self, pipeline: Any, files: tuple[Path, ...]) -> None:
        micro_wan.load_both(pipeline, files)
