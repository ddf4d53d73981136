"""The FLUX.1-Kontext family: a control image in the sequence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from diffusers import FluxKontextPipeline
from PIL import Image, ImageOps
from torch import Tensor

import micro_flux
from edit_checks import EditChecks
from family_checks import PROMPT
from plafond.families._contract import TextEmbedding


class TestFluxKontext(EditChecks):
    arch = "flux_kontext"
    pipeline = FluxKontextPipeline
    # guidance 1, as in training
    options = {"guidance_scale": 1.0, "max_area": 64 * 96, "_auto_resize": False}  # noqa: RUF012
    encoder_parameters = 4_885_371_136
    every_phase = True

    @staticmethod
    def make_checkpoint(folder: Path) -> Path:
        return micro_flux.make_checkpoint(folder)

    def unpack(self, latents: Tensor, height: int, width: int) -> Tensor:
        return FluxKontextPipeline._unpack_latents(latents, height, width, 8)

    def given(self, text: TextEmbedding) -> dict[str, Any]:
        return {"prompt_embeds": text["prompt_embeds"], "pooled_prompt_embeds": text["pooled"]}

    def draw(self, pipeline: Any) -> Image.Image:
        return pipeline(  # type: ignore[no-any-return]
            ImageOps.fit(self.images[0], (96, 64), Image.Resampling.BICUBIC),
            PROMPT,
            width=96,
            height=64,
            max_area=64 * 96,
            _auto_resize=False,
            num_inference_steps=2,
            guidance_scale=4.0,
            max_sequence_length=32,
            generator=torch.Generator().manual_seed(3),
        ).images[0]
