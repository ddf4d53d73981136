"""The Qwen-Image-Edit-2511 family: up to three control images."""

from __future__ import annotations

from pathlib import Path

from diffusers import QwenImageEditPlusPipeline

from edit_checks import QwenEditChecks, make_edit_checkpoint


class TestQwenImageEditPlus(QwenEditChecks):
    arch = "qwen_image_edit_plus:2511"
    pipeline = QwenImageEditPlusPipeline
    encoder_parameters = 7_747_169_280

    @staticmethod
    def make_checkpoint(folder: Path) -> Path:
        return make_edit_checkpoint(folder, zero_cond_t=True)
