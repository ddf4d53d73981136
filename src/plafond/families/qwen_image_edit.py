"""Qwen-Image-Edit: one control image beside the prompt, seen by the text encoder and by the transformer.

Qwen2.5-VL reads the prompt together with the control image; the control's latents join the picture's tokens, in the
same sequence. At training the control has the picture's own size, as in AI Toolkit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from plafond.families._ai_toolkit import PER_BLOCK, VAE, Residency
from plafond.families._contract import BaseModel, Length, Risk, TextEmbedding, control
from plafond.families.qwen_image import ENDING, NO_MASK, PARAMETERS, QwenImage, call, pack, unpack, with_mask

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image
    from torch import Tensor, nn

    from plafond.job.sample import SampleItem
    from plafond.job.train import TrainConfig
    from plafond.model.checkpoint import Source

PAD = "<|image_pad|>"
INTRODUCTION = 7
"""Tokens that introduce a picture at most, without its own."""
MAX_TEXT_TOKENS = 512
"""Plans count with as many words besides those of pictures; the pipeline itself cuts nothing off."""


class QwenImageEdit(QwenImage):
    """See `plafond.families._contract.Family`."""

    name = "qwen_image_edit"
    archs: tuple[str, ...] = ("qwen_image_edit",)
    controls = 1
    residency: Residency = replace(PER_BLOCK, stay=(VAE,), stay_low_vram=(VAE,))
    risks: tuple[Risk, ...] = (Risk(side=1024, batch=2), Risk(side=1024, controls=2))
    sees_controls = True
    seen_area = 1024 * 1024
    """Pixels of a control image as the text encoder sees it."""
    text_parts: tuple[str, ...] = ("text_encoder", "tokenizer", "processor")
    base_models: tuple[BaseModel, ...] = (
        BaseModel(
            title="Qwen-Image-Edit",
            repo="Qwen/Qwen-Image-Edit",
            arch="qwen_image_edit",
            transformer_parameters=PARAMETERS,
            text_encoders="Qwen2.5-VL-7B",
            licence="Apache-2.0",
            modelspec="qwen-image-edit",
        ),
    )

    @cached_property
    def _pipeline(self) -> Any:
        from diffusers import QwenImageEditPipeline

        return QwenImageEditPipeline

    # ------------------------------------------------------------------------------------------------ text

    def load_text_encoders(self, source: Source, *, device: torch.device, dtype: torch.dtype) -> Any:
        """Qwen2.5-VL with its vision tower in a pipeline that has nothing else."""
        import torch
        from transformers import Qwen2_5_VLForConditionalGeneration

        from plafond.families._shared import load_part, load_tokenizer

        # no text is written: the head stays behind
        whole = load_part(
            source,
            "text_encoder",
            Qwen2_5_VLForConditionalGeneration,
            device=torch.device("cpu"),
            dtype=dtype,
        )
        model: Any = whole.model
        return self._encoders(source, model.to(device), load_tokenizer(source))

    def build_text_encoders(self, source: Source) -> Any:
        """Qwen2.5-VL by its configuration."""
        from transformers import Qwen2_5_VLConfig, Qwen2_5_VLModel

        from plafond.model.rehearsal import FullLengthTokenizer

        config = Qwen2_5_VLConfig(**source.config("text_encoder"))
        length = source.config("tokenizer", "tokenizer_config.json")["model_max_length"]
        tokenizer = FullLengthTokenizer(length, {PAD: config.image_token_id})
        return self._encoders(source, Qwen2_5_VLModel(config).eval(), tokenizer)

    def _encoders(self, source: Source, model: nn.Module, tokenizer: Any) -> Any:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        numbers = source.config("processor", "preprocessor_config.json")
        keys = ("size", "min_pixels", "max_pixels", "patch_size", "temporal_patch_size", "merge_size")
        processor = Qwen2VLImageProcessorPil(**{key: numbers[key] for key in keys if key in numbers})
        return self._pipeline(
            scheduler=None,
            vae=None,
            transformer=None,
            text_encoder=model,
            tokenizer=tokenizer,
            processor=processor,
        )

    def encode_text(self, encoders: Any, prompts: Sequence[str]) -> list[TextEmbedding]:
        """Prompts without a picture."""
        return [self.encode_seen(encoders, prompt, ()) for prompt in prompts]

    def encode_seen(self, encoders: Any, prompt: str, controls: Sequence[Image]) -> TextEmbedding:
        """``prompt_embeds`` (tokens, features) and a ``prompt_embeds_mask`` of ones.

        The tokens of pictures have positions in three dimensions, as Qwen2.5-VL was trained; the language model is
        therefore called by itself.
        """
        import torch

        from plafond.memory.residence import host_memory, put

        model, skipped = encoders.text_encoder, encoders.prompt_template_encode_start_idx
        merged = model.config.vision_config.spatial_merge_size**2
        with host_memory(), torch.device("cpu"):
            text = self._written(encoders, prompt, len(controls))
            grid, pixels, counts = None, None, []
            if controls:
                seen = encoders.processor(images=self._seen(encoders, controls), return_tensors="pt")
                grid, pixels = seen["image_grid_thw"], seen["pixel_values"]
                counts = [int(one) // merged for one in grid.prod(dim=1)]
            first, *rest = text.split(PAD)
            text = first + "".join(PAD * count + part for count, part in zip(counts, rest, strict=True))
            length = min(MAX_TEXT_TOKENS + skipped + sum(counts), encoders.tokenizer.model_max_length)
            ids = encoders.tokenizer(text, max_length=length, truncation=True, return_tensors="pt").input_ids
            is_picture = ids[0] == model.config.image_token_id
            places = is_picture.nonzero()[:, 0]
            kinds = is_picture[None].to(torch.int32)
            positions = model.get_rope_index(ids, kinds, grid)[0]
        device = model.language_model.embed_tokens.weight.device
        with torch.no_grad():
            embedded = model.language_model.embed_tokens(put(ids, device))
            if pixels is not None and grid is not None:
                embedded[0, put(places, device)] = self._looked_at(model, pixels, grid)
            states = model.language_model(
                inputs_embeds=embedded,
                position_ids=put(positions, device),
                attention_mask=NO_MASK,
                use_cache=False,
            ).last_hidden_state
        return with_mask(states[0, skipped:])

    def prompt_length(self, source: Source, prompts: Sequence[str], controls: int) -> Length | None:
        """With the template around it and what introduces the pictures."""
        from plafond.families._shared import longest

        names = ("scheduler", "vae", "text_encoder", "tokenizer", "processor", "transformer")
        bare = self._pipeline(**dict.fromkeys(names))
        skipped = bare.prompt_template_encode_start_idx

        def count(tokenizer: Any, prompt: str) -> int:
            text = self._written(bare, prompt, controls)
            return len(tokenizer(text).input_ids) - text.count(PAD)

        return longest(
            source,
            prompts,
            count,
            around=skipped + ENDING + INTRODUCTION * controls,
            most=MAX_TEXT_TOKENS + skipped,
        )

    def _written(self, pipeline: Any, prompt: str, count: int) -> str:
        """A prompt in the pipeline's template, with a mark for each of so many pictures."""
        text: str = pipeline.prompt_template_encode.format(self._introduced(count) + prompt)
        return text if count else text.replace(f"<|vision_start|>{PAD}<|vision_end|>", "")

    def _looked_at(self, model: Any, pixels: Tensor, grid: Tensor) -> Tensor:
        from transformers.vision_utils import get_vision_position_ids

        from plafond.memory.residence import host_memory, put

        tower = model.visual
        weight = tower.patch_embed.proj.weight
        with host_memory():
            positions = get_vision_position_ids(grid, tower.spatial_merge_size)
        features: Tensor = tower(
            put(pixels, weight.device, weight.dtype),
            grid_thw=grid,
            position_ids=put(positions, weight.device),
        ).pooler_output
        return features

    def _introduced(self, count: int) -> str:
        """What stands before the prompt for so many pictures."""
        return ""

    def _seen(self, encoders: Any, controls: Sequence[Image]) -> list[Image]:
        """Control images at the size that the encoder sees."""
        return [
            encoders.image_processor.resize(image, *area_sides(self.seen_area, *image.size)[::-1])
            for image in controls
        ]

    # ------------------------------------------------------------------------------------------------ transformer

    def predict(
        self, transformer: nn.Module, noisy: Tensor, sigma: Tensor, text: TextEmbedding, settings: TrainConfig
    ) -> Tensor:
        """Velocity (B, 16, h, w); the tokens of control images follow those of the picture."""
        import torch

        controls = [text[control(place)] for place in range(self.controls) if control(place) in text]
        pictures = [noisy, *controls]
        shapes = [(1, picture.shape[-2] // 2, picture.shape[-1] // 2) for picture in pictures]
        tokens = [pack(picture) for picture in pictures]
        velocity = call(transformer, torch.cat(tokens, dim=1), sigma, text, shapes)
        return unpack(velocity[:, : tokens[0].shape[1]], *noisy.shape[-2:])

    def preview(
        self, transformer: nn.Module, vae: nn.Module, source: Source, item: SampleItem, text: TextEmbedding
    ) -> Image:
        """One picture at the item's size, seed, steps and guidance, with the item's control images."""
        import torch
        from PIL import Image as Pillow

        from plafond.families._shared import VAE_FACTOR, scheduler, whole

        names = [control(place) for place in range(self.controls) if control(place) in text]
        pictures = [Pillow.fromarray(text[name].permute(1, 2, 0).contiguous().numpy()) for name in names]
        if not pictures:
            return super().preview(transformer, vae, source, item, text)
        pipeline = self._pipeline(
            scheduler=scheduler(source),
            vae=vae,
            transformer=transformer,
            text_encoder=None,
            tokenizer=None,
            processor=None,
        )
        pipeline.set_progress_bar_config(disable=True)
        return pipeline(  # type: ignore[no-any-return]
            pictures if self.controls > 1 else pictures[0],
            **{name: tensor[None] for name, tensor in text.items() if name not in names},
            width=whole(item.width, 2 * VAE_FACTOR),
            height=whole(item.height, 2 * VAE_FACTOR),
            num_inference_steps=item.sample_steps,
            true_cfg_scale=item.guidance_scale,
            generator=torch.Generator("cpu").manual_seed(item.seed),
            output_type="pil",
        ).images[0]


def area_sides(area: int, width: int, height: int) -> tuple[int, int]:
    """Width and height, multiples of 32, of about `area` pixels in the shape of `width` × `height`."""
    from diffusers.pipelines.qwenimage.pipeline_qwenimage_edit_plus import calculate_dimensions

    return calculate_dimensions(area, width / height)  # type: ignore[no-any-return]


FAMILY = QwenImageEdit()
