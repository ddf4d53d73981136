"""A Qwen-Image checkpoint with random weights, small enough for tests, in the real on-disk layout."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from micro_qwen import SPECIAL, VOCABULARY, make_tokenizer

TEXT_WIDTH = 32
TEXT_LENGTH = 280
"""Bytes, of which the pipeline's own words are some 200."""


def make_transformer(**changes: object) -> QwenImageTransformer2DModel:
    """Width 32, two blocks."""
    config = {
        "num_layers": 2,
        "attention_head_dim": 16,
        "num_attention_heads": 2,
        "joint_attention_dim": TEXT_WIDTH,
        "axes_dims_rope": (4, 6, 6),
    }
    return QwenImageTransformer2DModel(**{**config, **changes})


def make_vae() -> AutoencoderKLQwenImage:
    """Eight channels wide."""
    return AutoencoderKLQwenImage(base_dim=8, dim_mult=[1, 1, 1, 1], num_res_blocks=1)


def make_encoder() -> Qwen2_5_VLForConditionalGeneration:
    """Two layers, and a vision tower of two."""
    tokens = {token: 256 + place for place, token in enumerate(SPECIAL)}
    return Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(
            text_config={
                "vocab_size": VOCABULARY,
                "hidden_size": TEXT_WIDTH,
                "intermediate_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 10000.0,
                    "mrope_section": [2, 3, 3],
                },
                "bos_token_id": None,
                "eos_token_id": tokens["<|im_end|>"],
            },
            vision_config={
                "depth": 2,
                "hidden_size": 32,
                "intermediate_size": 32,
                "num_heads": 2,
                "out_hidden_size": TEXT_WIDTH,
                "fullatt_block_indexes": [1],
            },
            image_token_id=tokens["<|image_pad|>"],
            video_token_id=tokens["<|video_pad|>"],
            vision_start_token_id=tokens["<|vision_start|>"],
            vision_end_token_id=tokens["<|vision_end|>"],
        )
    )


def make_scheduler() -> FlowMatchEulerDiscreteScheduler:
    """With the published numbers."""
    return FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True, base_shift=0.5, max_shift=0.9, max_image_seq_len=8192, shift_terminal=0.02
    )


def make_checkpoint(folder: Path, seed: int = 0) -> Path:
    """Write a complete diffusers folder and return it."""
    torch.manual_seed(seed)
    QwenImagePipeline(
        scheduler=make_scheduler(),
        vae=make_vae(),
        text_encoder=make_encoder(),
        tokenizer=make_tokenizer(TEXT_LENGTH),
        transformer=make_transformer(),
    ).save_pretrained(folder)
    return folder
