"""Wan 2.2, text and image to video: 5 B, with an autoencoder of its own.

Its latents have 48 channels, 16×16 pixels and four frames to one. Where a data set says ``do_i2v``, or a preview has a
control image, the first frame is given: its latents stay clean, and the model counts their noise level as 0. Every
token has a noise level then, which takes memory; elsewhere one for the whole clip says the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plafond.families._contract import BaseModel, TextEmbedding
from plafond.families._wan import call
from plafond.families.wan21 import TIMESTEPS, Wan21
from plafond.families.wan21_i2v import GIVEN, FromFirstFrame

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor, nn

    from plafond.data.buckets import Bucket
    from plafond.job.dataset import DatasetConfig
    from plafond.job.model import ModelConfig
    from plafond.job.sample import SampleItem
    from plafond.job.train import TrainConfig
    from plafond.model.checkpoint import Source


class Wan22Small(FromFirstFrame):
    """See `plafond.families._contract.Family`."""

    name = "wan22_5b"
    archs: tuple[str, ...] = ("wan22_5b",)
    divisor = 32
    usual_frames = 121
    base_version = "wan_2.2_5b"
    miniature: Mapping[str, Mapping[str, Any]] = {
        **Wan21.miniature,
        "vae": {"base_dim": 32, "decoder_base_dim": 32},
    }
    base_models: tuple[BaseModel, ...] = (
        BaseModel(
            title="Wan2.2-TI2V-5B",
            repo="Wan-AI/Wan2.2-TI2V-5B-Diffusers",
            arch="wan22_5b",
            transformer_parameters=4_999_787_712,
            text_encoders="UMT5-XXL",
            licence="Apache-2.0",
            modelspec="wan2.2-ti2v-5b",
        ),
    )

    def opened(self, data: DatasetConfig, frames: int) -> bool:
        """Clips of data sets that say ``do_i2v``."""
        return data.do_i2v and frames > 1

    def control_size(self, model: ModelConfig, width: int, height: int, bucket: Bucket) -> Bucket:
        """The first frame alone."""
        return replace(bucket, frames=1)

    def predict(
        self, transformer: nn.Module, noisy: Tensor, sigma: Tensor, text: TextEmbedding, settings: TrainConfig
    ) -> Tensor:
        """Velocity (B, C, frames, h, w)."""
        import torch

        if GIVEN not in text:
            return call(transformer, noisy, sigma * TIMESTEPS, text)
        _, _, frames, height, width = noisy.shape
        levels = torch.cat([torch.zeros_like(sigma)[:, None], sigma[:, None].expand(-1, frames - 1)], dim=1)
        levels = (levels * TIMESTEPS).repeat_interleave(height * width // 4, dim=1)
        return call(transformer, torch.cat([text[GIVEN], noisy[:, :, 1:]], dim=2), levels, text)

    def scored(self, velocity: Tensor, text: TextEmbedding) -> Tensor:
        """All frames but a given one."""
        return velocity[:, :, 1:] if GIVEN in text else velocity

    def preview(
        self, transformer: nn.Module, vae: nn.Module, source: Source, item: SampleItem, text: TextEmbedding
    ) -> Image | list[Image]:
        """A clip, or a picture, from the item's control image if there is one."""
        if GIVEN in text:
            return super().preview(transformer, vae, source, item, text)
        return Wan21.preview(self, transformer, vae, source, item, text)

    def _drawn_by(self, transformer: nn.Module) -> dict[str, Any]:
        return {"transformer": transformer, "expand_timesteps": True}


FAMILY = Wan22Small()
