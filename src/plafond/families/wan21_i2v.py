"""Wan 2.1, image to video: 14 B, for 480p and 720p.

The model sees a clip's first frame twice: as latents of a clip that is grey behind it, stacked on the noisy ones with
a mask that says which frames are given; and through CLIP's image encoder, whose tokens stand before the prompt's. In
training the first frame is the clip's own; a picture is its own first frame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plafond.families._ai_toolkit import VAE, WHOLE_THEN_PER_BLOCK, Residency
from plafond.families._contract import BaseModel, TextEmbedding, control
from plafond.families._wan import IMAGE, TEXT_TOKENS
from plafond.families.wan21 import PARAMETERS, Wan21

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image
    from torch import Tensor, nn

    from plafond.job.dataset import DatasetConfig
    from plafond.job.sample import SampleItem
    from plafond.job.train import TrainConfig
    from plafond.model.checkpoint import Source

GIVEN = control(0)
MASKS = 4
"""Channels of the mask: one for each of the frames that share a latent."""
GREY = (128, 128, 128)
WITH_FRAME = 20 * 4 * 5120
"""Parameters more: of the layer that reads latents, for 20 channels more of 2×2 patches."""
WITH_IMAGE = PARAMETERS + WITH_FRAME + 2_105_977_600


class FromFirstFrame(Wan21):
    """What image-to-video models do with the first frame."""

    residency: Residency = replace(WHOLE_THEN_PER_BLOCK, stay=(VAE,), stay_low_vram=(VAE,))
    opens = True

    def opened(self, data: DatasetConfig, frames: int) -> bool:
        """Always."""
        return True

    def predict(
        self, transformer: nn.Module, noisy: Tensor, sigma: Tensor, text: TextEmbedding, settings: TrainConfig
    ) -> Tensor:
        """Velocity (B, C, frames, h, w); the mask and the given latents follow the noisy ones."""
        import torch

        given = text[GIVEN] if GIVEN in text else torch.zeros_like(noisy)
        batch, _, frames, height, width = noisy.shape
        mask = torch.cat(
            [
                noisy.new_ones(batch, MASKS, 1, height, width),
                noisy.new_zeros(batch, MASKS, frames - 1, height, width),
            ],
            dim=2,
        )
        return super().predict(transformer, torch.cat([noisy, mask, given], dim=1), sigma, text, settings)

    def preview(
        self, transformer: nn.Module, vae: nn.Module, source: Source, item: SampleItem, text: TextEmbedding
    ) -> Image | list[Image]:
        """A clip, or a picture, from the item's control image at its size; from grey without one."""
        from diffusers import WanImageToVideoPipeline

        from plafond.families._shared import scheduler

        pipeline = WanImageToVideoPipeline(
            scheduler=scheduler(source),
            vae=vae,
            text_encoder=None,
            tokenizer=None,
            image_encoder=None,
            image_processor=None,
            **self._drawn_by(transformer),
        )
        if IMAGE in text:
            pipeline.encode_image = lambda *_: text[IMAGE][None]
        return self._draw(pipeline, item, text, image=self._first(item, text))

    def _first(self, item: SampleItem, text: TextEmbedding) -> Image:
        from PIL import Image as Pillow
        from PIL import ImageOps

        size = self._size(item)
        if GIVEN not in text:
            return Pillow.new("RGB", size, GREY)
        given = Pillow.fromarray(text[GIVEN].permute(1, 2, 0).contiguous().numpy())
        return ImageOps.fit(given, size, Pillow.Resampling.BICUBIC)


class Wan21I2V(FromFirstFrame):
    """See `plafond.families._contract.Family`."""

    name = "wan21_i2v"
    archs: tuple[str, ...] = ("wan21_i2v",)
    sees_controls = True
    text_parts: tuple[str, ...] = ("text_encoder", "tokenizer", "image_encoder", "image_processor")
    miniature: Mapping[str, Mapping[str, Any]] = {
        **Wan21.miniature,
        "transformer": {**Wan21.miniature["transformer"], "added_kv_proj_dim": 512},
        "image_encoder": {"num_hidden_layers": 2},
    }
    base_models: tuple[BaseModel, ...] = tuple(
        BaseModel(
            title=f"Wan2.1-I2V-14B-{size}",
            repo=f"Wan-AI/Wan2.1-I2V-14B-{size}-Diffusers",
            arch=arch,
            transformer_parameters=WITH_IMAGE,
            text_encoders="UMT5-XXL + CLIP-H",
            licence="Apache-2.0",
            modelspec=f"wan2.1-i2v-14b-{size.lower()}",
        )
        for size, arch in (("480P", "wan21_i2v:14b480p"), ("720P", "wan21_i2v:14b"))
    )

    # ------------------------------------------------------------------------------------------------ text

    def load_text_encoders(self, source: Source, *, device: torch.device, dtype: torch.dtype) -> Any:
        """UMT5's encoder and CLIP's image encoder in a pipeline that has nothing else."""
        from transformers import CLIPVisionModel, UMT5EncoderModel

        from plafond.families._shared import load_part, load_tokenizer

        encoder = load_part(source, "text_encoder", UMT5EncoderModel, device=device, dtype=dtype)
        image = load_part(source, "image_encoder", CLIPVisionModel, device=device, dtype=dtype)
        return self._both(source, encoder, load_tokenizer(source), image)

    def text_modules(self, encoders: Any) -> list[nn.Module]:
        """UMT5 and CLIP."""
        return [encoders.text_encoder, encoders.image_encoder]

    def build_text_encoders(self, source: Source) -> Any:
        """Both encoders by their configurations."""
        from transformers import CLIPVisionConfig, CLIPVisionModel, UMT5Config, UMT5EncoderModel

        from plafond.model.rehearsal import FullLengthTokenizer

        encoder = UMT5EncoderModel(UMT5Config(**source.config("text_encoder"))).eval()
        image = CLIPVisionModel(CLIPVisionConfig(**source.config("image_encoder"))).eval()
        return self._both(source, encoder, FullLengthTokenizer(TEXT_TOKENS), image)

    def _both(self, source: Source, encoder: nn.Module, tokenizer: Any, image: nn.Module) -> Any:
        from diffusers import WanImageToVideoPipeline
        from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

        numbers = source.config("image_processor", "preprocessor_config.json")
        keys = ("size", "crop_size", "image_mean", "image_std")
        return WanImageToVideoPipeline(
            scheduler=None,
            vae=None,
            text_encoder=encoder,
            tokenizer=tokenizer,
            image_encoder=image,
            image_processor=CLIPImageProcessorPil(**{key: numbers[key] for key in keys if key in numbers}),
        )

    def encode_text(self, encoders: Any, prompts: Sequence[str]) -> list[TextEmbedding]:
        """Prompts beside a grey first frame."""
        from PIL import Image as Pillow

        side = encoders.image_encoder.config.image_size
        return [
            self.encode_seen(encoders, prompt, [Pillow.new("RGB", (side, side), GREY)]) for prompt in prompts
        ]

    def encode_seen(self, encoders: Any, prompt: str, controls: Sequence[Image]) -> TextEmbedding:
        """``prompt_embeds`` (512, features), and of the first frame ``image_embeds`` (257, features)."""
        import torch

        from plafond.memory.residence import host_memory, put

        (text,) = super().encode_text(encoders, [prompt])
        (first,) = controls
        model = encoders.image_encoder
        weight = next(model.parameters())
        with host_memory(), torch.device("cpu"):
            pixels = encoders.image_processor(images=first, return_tensors="pt").pixel_values
        with torch.no_grad():
            seen = model(put(pixels, weight.device, weight.dtype), output_hidden_states=True)
        return {**text, IMAGE: seen.hidden_states[-2][0]}


FAMILY = Wan21I2V()
