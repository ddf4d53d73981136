"""The Qwen-Image-Edit family: one control image."""

from __future__ import annotations

from pathlib import Path

from diffusers import QwenImageEditPipeline

from edit_checks import QwenEditChecks, make_edit_checkpoint


class TestQwenImageEdit(QwenEditChecks):
    arch = "qwen_image_edit"
    pipeline = QwenImageEditPipeline
    encoder_parameters = 7_747_169_280

    @staticmethod
    def make_checkpoint(folder: Path) -> Path:
        return make_edit_checkpoint(folder)
