"""A Wan checkpoint with random weights, small enough for tests, in the real on-disk layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel
from PIL import Image
from transformers import T5Tokenizer, UMT5Config, UMT5EncoderModel

TEXT_WIDTH = 32
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


def draw(pipeline: Any) -> Image.Image:
    """A picture as the shared checks ask for it."""
    return pipeline(  # type: ignore[no-any-return]
        "a photo of sks thing",
        negative_prompt="blurred",
        width=96,
        height=64,
        num_frames=1,
        num_inference_steps=2,
        guidance_scale=4.0,
        generator=torch.Generator().manual_seed(3),
        output_type="pil",
    ).frames[0][0]


def make_checkpoint(folder: Path, seed: int = 0, *, experts: bool = False) -> Path:
    """Write a complete diffusers folder, of one transformer or of two experts, and return it."""
    torch.manual_seed(seed)
    encoder = UMT5EncoderModel(
        UMT5Config(
            vocab_size=4 + len(LETTERS), d_model=TEXT_WIDTH, d_kv=16, d_ff=32, num_layers=1, num_heads=2
        )
    )
    WanPipeline(
        scheduler=make_scheduler(),
        vae=make_vae(),
        text_encoder=encoder,
        tokenizer=make_tokenizer(),
        transformer=make_transformer(),
        **({"transformer_2": make_transformer(), "boundary_ratio": 0.875} if experts else {}),
    ).save_pretrained(folder)
    return folder
