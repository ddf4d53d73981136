"""Stable Diffusion 1.5 and checkpoints of its shape: CLIP-L, a UNet at 512 pixels, noise prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plafond.families._contract import BaseModel, Risk, TextEmbedding
from plafond.families._unet import UNetFamily, build_encoder, load_encoder

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image
    from torch import nn

    from plafond.job.sample import SampleItem
    from plafond.model.checkpoint import Source

CLIP = "cond_stage_model.transformer."
"""What stands before the text encoder's names in a whole checkpoint."""


class StableDiffusion15(UNetFamily):
    """See `plafond.families._contract.Family`."""

    name = "sd15"
    archs: tuple[str, ...] = ("sd1",)
    text_parts: tuple[str, ...] = ("text_encoder", "tokenizer")
    risks: tuple[Risk, ...] = (Risk(side=768, batch=4),)
    base_version = "sd_1.5"
    base_models: tuple[BaseModel, ...] = (
        BaseModel(
            title="Stable Diffusion 1.5",
            repo="stable-diffusion-v1-5/stable-diffusion-v1-5",
            arch="sd15",
            transformer_parameters=859_520_964,
            text_encoders="CLIP-L",
            licence="CreativeML OpenRAIL-M",
            modelspec="stable-diffusion-v1",
        ),
    )

    def load_text_encoders(self, source: Source, *, device: torch.device, dtype: torch.dtype) -> Any:
        """CLIP-L in a pipeline that has nothing else."""
        from transformers import CLIPTextModel

        from plafond.families._shared import load_tokenizer

        encoder = load_encoder(source, "text_encoder", CLIPTextModel, CLIP, device=device, dtype=dtype)
        return self._pipeline(text_encoder=encoder, tokenizer=load_tokenizer(source))

    def build_text_encoders(self, source: Source) -> Any:
        """CLIP-L by its configuration."""
        from transformers import CLIPTextModel

        from plafond.model.rehearsal import FullLengthTokenizer

        length = source.config("tokenizer", "tokenizer_config.json")["model_max_length"]
        encoder = build_encoder(source, "text_encoder", CLIPTextModel)
        return self._pipeline(text_encoder=encoder, tokenizer=FullLengthTokenizer(length))

    def _pipeline(self, **parts: Any) -> Any:
        from diffusers import StableDiffusionPipeline

        names = (
            "vae",
            "text_encoder",
            "tokenizer",
            "unet",
            "scheduler",
            "safety_checker",
            "feature_extractor",
        )
        return StableDiffusionPipeline(**{**dict.fromkeys(names), **parts}, requires_safety_checker=False)

    def text_modules(self, encoders: Any) -> list[nn.Module]:
        """CLIP-L."""
        return [encoders.text_encoder]

    def encode_text(self, encoders: Any, prompts: Sequence[str]) -> list[TextEmbedding]:
        """``prompt_embeds`` (77, 768) of each prompt."""
        import torch

        with torch.no_grad():
            found, _ = encoders.encode_prompt(
                list(prompts), encoders.text_encoder.device, 1, do_classifier_free_guidance=False
            )
        return [{"prompt_embeds": found[index]} for index in range(len(prompts))]

    def preview(
        self, transformer: nn.Module, vae: nn.Module, source: Source, item: SampleItem, text: TextEmbedding
    ) -> Image:
        """One picture at the item's size, seed, steps and guidance."""
        from plafond.families._shared import scheduler

        negative = text.get("negative_prompt_embeds")
        return self.draw(
            self._pipeline(vae=vae, unet=transformer, scheduler=scheduler(source)),
            item,
            prompt_embeds=text["prompt_embeds"][None],
            negative_prompt_embeds=None if negative is None else negative[None],
        )

    def kohya_names(self, transformer: nn.Module) -> Mapping[str, str]:
        """Kohya's trainer uses diffusers' UNet for this model."""
        return {path: path for path, _ in transformer.named_modules()}


FAMILY = StableDiffusion15()
