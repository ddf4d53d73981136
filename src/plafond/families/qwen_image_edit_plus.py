"""Qwen-Image-Edit-2509 and -2511: up to three control images.

They are named in the prompt as Picture 1 to 3. The text encoder sees each at about 384², the transformer at about one
megapixel whatever the picture's own size, or at that size with ``match_target_res``.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from plafond.families._contract import BaseModel
from plafond.families.qwen_image import PARAMETERS
from plafond.families.qwen_image_edit import PAD, QwenImageEdit, area_sides

if TYPE_CHECKING:
    from plafond.data.buckets import Bucket
    from plafond.job.model import ModelConfig

SHOWN_AREA = 1024 * 1024
"""Pixels of a control image as the transformer sees it."""


class QwenImageEditPlus(QwenImageEdit):
    """See `plafond.families._contract.Family`."""

    name = "qwen_image_edit_plus"
    archs: tuple[str, ...] = ("qwen_image_edit_plus",)
    model_options: tuple[str, ...] = ("match_target_res",)
    controls = 3
    seen_area = 384 * 384
    base_models: tuple[BaseModel, ...] = (
        BaseModel(
            title="Qwen-Image-Edit-2509",
            repo="Qwen/Qwen-Image-Edit-2509",
            arch="qwen_image_edit_plus",
            transformer_parameters=PARAMETERS,
            text_encoders="Qwen2.5-VL-7B",
            licence="Apache-2.0",
            modelspec="qwen-image-edit-2509",
        ),
        BaseModel(
            title="Qwen-Image-Edit-2511",
            repo="Qwen/Qwen-Image-Edit-2511",
            arch="qwen_image_edit_plus:2511",
            transformer_parameters=PARAMETERS,
            text_encoders="Qwen2.5-VL-7B",
            licence="Apache-2.0",
            modelspec="qwen-image-edit-2511",
        ),
    )

    @cached_property
    def _pipeline(self) -> Any:
        from diffusers import QwenImageEditPlusPipeline

        return QwenImageEditPlusPipeline

    def control_size(self, model: ModelConfig, width: int, height: int, bucket: Bucket) -> Bucket:
        """One megapixel in the control image's own shape."""
        from plafond.data.buckets import Bucket

        if model.model_kwargs.get("match_target_res"):
            return bucket
        return Bucket(*area_sides(SHOWN_AREA, width, height))

    def _introduced(self, count: int) -> str:
        return "".join(
            f"Picture {place}: <|vision_start|>{PAD}<|vision_end|>" for place in range(1, count + 1)
        )


FAMILY = QwenImageEditPlus()
