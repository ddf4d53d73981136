"""A Wan checkpoint with random weights, small enough for tests, in the real on-disk layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKLWan,
    UniPCMultistepScheduler,
    WanImageToVideoPipeline,
    WanPipeline,
    WanTransformer3DModel,
)
from PIL import Image
from transformers import CLIPVisionConfig, CLIPVisionModel, T5Tokenizer, UMT5Config, UMT5EncoderModel
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

TEXT_WIDTH = 32
IMAGE_WIDTH = 24
SEEN = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
LETTERS = "abcdefghijklmnopqrstuvwxyz,.0123456789"


def make_transformer(**changes: object) -> WanTransformer3DModel:
    """Width 32, two blocks."""
    config = {
        "num_layers": 2,
        "attention_head_dim": 16,
        "num_attention_heads": 2,
        "text_dim": TEXT_WIDTH,
        "freq_dim": 32,
        "ffn_dim": 64,
        "rope_max_seq_len": 64,
    }
    return WanTransformer3DModel(**{**config, **changes})


def make_vae(**changes: object) -> AutoencoderKLWan:
    """Eight channels wide."""
    return AutoencoderKLWan(**{"base_dim": 8, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1, **changes})


RESIDUAL = {
    "is_residual": True,
    "patch_size": 2,
    "in_channels": 12,
    "out_channels": 12,
    "decoder_base_dim": 8,
    "scale_factor_spatial": 16,
}
"""What Wan 2.2's autoencoder of 5 B has beyond the others'."""


def make_image_encoder() -> CLIPVisionModel:
    """Two layers, on 28² pixels."""
    return CLIPVisionModel(
        CLIPVisionConfig(
            hidden_size=IMAGE_WIDTH,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=28,
            patch_size=14,
        )
    )


def make_tokenizer() -> T5Tokenizer:
    """One token per letter."""
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("\u2581", -2.0)]
    vocab = special + [(letter, -3.0) for letter in LETTERS]
    return T5Tokenizer(vocab=vocab, extra_ids=0, model_max_length=512)


def make_scheduler() -> UniPCMultistepScheduler:
    """With the published numbers."""
    return UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0, num_train_timesteps=1000
    )


WORDS = {"prompt": "a photo of sks thing", "negative_prompt": "blurred"}


def draw(pipeline: Any, **more: Any) -> Image.Image:
    """A picture as the shared checks ask for it; `more` may take the place of the prompts."""
    return pipeline(  # type: ignore[no-any-return]
        **({} if "prompt_embeds" in more else WORDS),
        **more,
        width=96,
        height=64,
        num_frames=1,
        num_inference_steps=2,
        guidance_scale=4.0,
        generator=torch.Generator().manual_seed(3),
        output_type="pil",
    ).frames[0][0]


def load_both(pipeline: Any, files: tuple[Path, ...]) -> None:
    """Give the pipeline the adapters of both experts."""
    high, low = files
    assert high.stem.endswith("_high_noise") and low.stem.endswith("_low_noise")
    pipeline.load_lora_weights(high, adapter_name="high")
    pipeline.load_lora_weights(low, adapter_name="low", load_into_transformer_2=True)


def make_encoder() -> UMT5EncoderModel:
    """Two layers."""
    return UMT5EncoderModel(
        UMT5Config(
            vocab_size=64, d_model=TEXT_WIDTH, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0
        )
    )


def make_checkpoint(
    folder: Path,
    seed: int = 0,
    *,
    boundary: float | None = None,
    sees: bool = False,
    small: bool = False,
    **changes: object,
) -> Path:
    """Write a complete diffusers folder and return it.

    Args:
        folder: where.
        seed: of the weights.
        boundary: of two experts; None makes one transformer.
        sees: CLIP's image encoder belongs to it, for image to video.
        small: as the model of 5 B, whose VAE is another and whose tokens have noise levels of their own.
        changes: to the transformer's configuration; 20 more `in_channels` make it one of image to video.
    """
    torch.manual_seed(seed)
    transformer = make_transformer(**changes)
    parts: dict[str, Any] = {
        "scheduler": make_scheduler(),
        "vae": make_vae(),
        "text_encoder": make_encoder(),
        "tokenizer": make_tokenizer(),
        "transformer": transformer,
    }
    if boundary is not None:
        parts |= {"transformer_2": make_transformer(**changes), "boundary_ratio": boundary}
    if sees:
        parts |= {"image_encoder": make_image_encoder(), "image_processor": CLIPImageProcessorPil(**SEEN)}
    if small:
        parts |= {"vae": make_vae(**RESIDUAL), "expand_timesteps": True}
    from_image = transformer.config.in_channels > transformer.config.out_channels
    (WanImageToVideoPipeline if from_image else WanPipeline)(**parts).save_pretrained(folder)
    return folder
