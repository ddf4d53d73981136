"""A Z-Image checkpoint with random weights, small enough for tests, in the real on-disk layout."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, ZImagePipeline, ZImageTransformer2DModel
from transformers import Qwen3Config, Qwen3Model

from micro_qwen import VOCABULARY, make_tokenizer

TEXT_WIDTH = 32


def make_transformer(**changes: object) -> ZImageTransformer2DModel:
    """Width 32, one block in each refiner and three others."""
    config = {
        "dim": 32,
        "n_layers": 3,
        "n_refiner_layers": 1,
        "n_heads": 2,
        "n_kv_heads": 2,
        "cap_feat_dim": TEXT_WIDTH,
        "axes_dims": [4, 6, 6],
        "axes_lens": [256, 64, 64],
    }
    model = ZImageTransformer2DModel(**{**config, **changes})
    with torch.no_grad():  # as trained ones, unlike the class's zeros
        for token in (model.x_pad_token, model.cap_pad_token):
            token.normal_()
    return model


def make_checkpoint(folder: Path, seed: int = 0) -> Path:
    """Write a complete diffusers folder and return it."""
    torch.manual_seed(seed)
    encoder = Qwen3Model(
        Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=TEXT_WIDTH,
            intermediate_size=32,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            tie_word_embeddings=True,
        )
    )
    vae = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(8, 8, 8, 8),
        layers_per_block=1,
        latent_channels=16,
        norm_num_groups=4,
        mid_block_add_attention=False,
        use_quant_conv=False,
        use_post_quant_conv=False,
        scaling_factor=0.4,
        shift_factor=0.1,
    )
    ZImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=vae,
        text_encoder=encoder,
        tokenizer=make_tokenizer(64),
        transformer=make_transformer(),
    ).save_pretrained(folder)
    return folder
