"""FLUX.1-Kontext: a control image in the same sequence.

The control's latents follow the picture's as tokens of their own, told apart by the first of their three positions.
The text encoders do not see it. At training the control has the picture's own size, as in AI Toolkit; previews
fit it into theirs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from plafond.families._ai_toolkit import VAE, WHOLE, Residency
from plafond.families._contract import BaseModel, Risk, TextEmbedding, control
from plafond.families.flux import Flux, call, draw, pack, places, unpack

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor, nn

    from plafond.job.model import ModelConfig
    from plafond.job.sample import SampleItem
    from plafond.job.train import TrainConfig
    from plafond.model.checkpoint import Source

CONTROL = control(0)


class FluxKontext(Flux):
    """See `plafond.families._contract.Family`."""

    name = "flux_kontext"
    archs: tuple[str, ...] = ("flux_kontext",)
    divisor = 16
    controls = 1
    residency: Residency = replace(WHOLE, stay=(VAE,), stay_low_vram=(VAE,))
    risks: tuple[Risk, ...] = (Risk(side=512, batch=2, controls=1), Risk(side=1024, controls=1))
    base_version = "flux.1_kontext"
    base_models: tuple[BaseModel, ...] = (
        BaseModel(
            title="FLUX.1-Kontext-dev",
            repo="black-forest-labs/FLUX.1-Kontext-dev",
            arch="flux_kontext",
            transformer_parameters=11_901_408_320,
            text_encoders="T5-XXL + CLIP-L",
            licence="FLUX.1-dev non-commercial",
            modelspec="flux-1-kontext-dev",
        ),
    )

    def locate(self, model: ModelConfig) -> Source:
        """Folder, Hugging Face id, or a transformer file with encoders and VAE from FLUX.1-Kontext-dev."""
        from plafond.model.checkpoint import locate

        return locate(model, companion=self.base_models[0].repo)

    def predict(
        self, transformer: nn.Module, noisy: Tensor, sigma: Tensor, text: TextEmbedding, settings: TrainConfig
    ) -> Tensor:
        """Velocity (B, 16, h, w)."""
        import torch

        tokens, ids = pack(noisy), places(noisy)
        own = tokens.shape[1]
        if CONTROL in text:
            given = text[CONTROL]
            other = places(given)
            other[:, 0] = 1
            tokens, ids = torch.cat([tokens, pack(given)], dim=1), torch.cat([ids, other])
        velocity = call(transformer, tokens, ids, sigma, text, settings)
        return unpack(velocity[:, :own], *noisy.shape[-2:])

    def preview(
        self, transformer: nn.Module, vae: nn.Module, source: Source, item: SampleItem, text: TextEmbedding
    ) -> Image:
        """One picture at the item's size, seed, steps and guidance, with the item's control image."""
        from diffusers import FluxKontextPipeline
        from PIL import Image as Pillow
        from PIL import ImageOps

        from plafond.families._shared import VAE_FACTOR, scheduler, whole

        if CONTROL not in text:
            return super().preview(transformer, vae, source, item, text)
        width, height = whole(item.width, 2 * VAE_FACTOR), whole(item.height, 2 * VAE_FACTOR)
        given = Pillow.fromarray(text[CONTROL].permute(1, 2, 0).contiguous().numpy())
        pipeline = FluxKontextPipeline(
            scheduler=scheduler(source), vae=vae, transformer=transformer, **dict.fromkeys(self.text_parts)
        )
        return draw(
            pipeline,
            item,
            text,
            image=ImageOps.fit(given, (width, height), Pillow.Resampling.BICUBIC),
            width=width,
            height=height,
            max_area=width * height,
            _auto_resize=False,
        )


FAMILY = FluxKontext()
