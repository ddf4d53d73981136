"""The Wan 2.1 family of image to video: a first frame, which CLIP sees, too."""

from __future__ import annotations

from pathlib import Path

import micro_wan
from first_frame_checks import FirstFrameChecks


class TestWan21I2V(FirstFrameChecks):
    arch = "wan21_i2v:14b480p"
    latent = (16, 1, 8, 8)
    encoder_parameters = 5_680_910_336 + 630_766_080

    @staticmethod
    def make_checkpoint(folder: Path) -> Path:
        changes = {"in_channels": 36, "added_kv_proj_dim": 32, "image_dim": micro_wan.IMAGE_WIDTH}
        return micro_wan.make_checkpoint(folder, sees=True, **changes)
