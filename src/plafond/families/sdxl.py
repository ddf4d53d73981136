"""Stable Diffusion XL and checkpoints of its shape: two CLIP encoders and a UNet at 1024 pixels.

The UNet sees the last layer but one of both encoders side by side, and is told the pooled vector of the second one
with the sizes that the picture had, its crop and the size that is drawn: at training the bucket's, as in AI Toolkit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plafond.families._contract import BaseModel, Risk, TextEmbedding
from plafond.families._unet import UNetFamily, build_encoder, load_encoder

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image
    from torch import Tensor, nn

    from plafond.job.sample import SampleItem
    from plafond.model.checkpoint import Source

CLIP_L, CLIP_G = "conditioner.embedders.0.transformer.", "conditioner.embedders.1."
"""What stands before the encoders' names in a whole checkpoint."""


class StableDiffusionXL(UNetFamily):
    """See `plafond.families._contract.Family`."""

    name = "sdxl"
    archs: tuple[str, ...] = ("sdxl",)
    text_parts: tuple[str, ...] = ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2")
    risks: tuple[Risk, ...] = (Risk(side=1024, batch=2), Risk(side=768, batch=4))
    base_version = "sdxl_1.0"
    base_models: tuple[BaseModel, ...] = (
        BaseModel(
            title="Stable Diffusion XL",
            repo="stabilityai/stable-diffusion-xl-base-1.0",
            arch="sdxl",
            transformer_parameters=2_567_463_684,
            text_encoders="CLIP-L + CLIP-bigG",
            licence="CreativeML OpenRAIL++-M",
            modelspec="stable-diffusion-xl-v1-base",
        ),
    )

    def load_text_encoders(self, source: Source, *, device: torch.device, dtype: torch.dtype) -> Any:
        """CLIP-L and CLIP-bigG in a pipeline that has nothing else."""
        from transformers import CLIPTextModel, CLIPTextModelWithProjection

        from plafond.families._shared import load_tokenizer

        first = load_encoder(source, "text_encoder", CLIPTextModel, CLIP_L, device=device, dtype=dtype)
        second = load_encoder(
            source, "text_encoder_2", CLIPTextModelWithProjection, CLIP_G, device=device, dtype=dtype
        )
        tokenizers = [load_tokenizer(source, part) for part in ("tokenizer", "tokenizer_2")]
        return self._encoders(first, second, *tokenizers)

    def build_text_encoders(self, source: Source) -> Any:
        """Both encoders by their configurations."""
        from transformers import CLIPTextModel, CLIPTextModelWithProjection

        from plafond.model.rehearsal import FullLengthTokenizer

        tokenizers = [
            FullLengthTokenizer(source.config(part, "tokenizer_config.json")["model_max_length"])
            for part in ("tokenizer", "tokenizer_2")
        ]
        first = build_encoder(source, "text_encoder", CLIPTextModel)
        second = build_encoder(source, "text_encoder_2", CLIPTextModelWithProjection)
        return self._encoders(first, second, *tokenizers)

    def _encoders(self, first: nn.Module, second: nn.Module, tokenizer: Any, tokenizer_2: Any) -> Any:
        return self._pipeline(
            text_encoder=first, text_encoder_2=second, tokenizer=tokenizer, tokenizer_2=tokenizer_2
        )

    def _pipeline(self, **parts: Any) -> Any:
        from diffusers import StableDiffusionXLPipeline

        names = ("vae", "unet", "scheduler", *self.text_parts)
        return StableDiffusionXLPipeline(**{**dict.fromkeys(names), **parts}, add_watermarker=False)

    def text_modules(self, encoders: Any) -> list[nn.Module]:
        """CLIP-L and CLIP-bigG."""
        return [encoders.text_encoder, encoders.text_encoder_2]

    def encode_text(self, encoders: Any, prompts: Sequence[str]) -> list[TextEmbedding]:
        """``prompt_embeds`` (77, 2048) and ``pooled`` (1280,) of each prompt."""
        import torch

        with torch.no_grad():
            found, _, pooled, _ = encoders.encode_prompt(
                list(prompts), device=encoders.text_encoder.device, do_classifier_free_guidance=False
            )
        return [{"prompt_embeds": found[index], "pooled": pooled[index]} for index in range(len(prompts))]

    def added(self, noisy: Tensor, text: TextEmbedding) -> dict[str, Tensor]:
        """The pooled vector and the picture's sizes."""
        import torch

        from plafond.families._shared import VAE_FACTOR
        from plafond.memory.residence import host_memory, put

        height, width = (side * VAE_FACTOR for side in noisy.shape[-2:])
        with host_memory():
            sizes = torch.tensor([height, width, 0, 0, height, width]).expand(noisy.shape[0], -1)
        return {"text_embeds": text["pooled"], "time_ids": put(sizes, noisy.device, noisy.dtype)}

    def preview(
        self, transformer: nn.Module, vae: nn.Module, source: Source, item: SampleItem, text: TextEmbedding
    ) -> Image:
        """One picture at the item's size, seed, steps and guidance."""
        from plafond.families._shared import scheduler

        given = {"prompt_embeds": text["prompt_embeds"][None], "pooled_prompt_embeds": text["pooled"][None]}
        if self.guided(item):
            given["negative_prompt_embeds"] = text["negative_prompt_embeds"][None]
            given["negative_pooled_prompt_embeds"] = text["negative_pooled"][None]
        pipeline = self._pipeline(vae=vae, unet=transformer, scheduler=scheduler(source))
        return self.draw(pipeline, item, **given)

    def kohya_names(self, transformer: nn.Module) -> Mapping[str, str]:
        """Kohya's trainer uses the original release's UNet for this model."""
        return {entry.diffusers[0]: entry.native for entry in self.native_table(transformer)}


FAMILY = StableDiffusionXL()
