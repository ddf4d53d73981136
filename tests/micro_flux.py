"""A FLUX checkpoint with random weights, small enough for tests, in the real on-disk layout."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from transformers import AutoTokenizer, CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

from plafond.assets.tiny_tokenizers import save_tokenizers

TEXT_WIDTH = 32


def make_transformer(**changes: object) -> FluxTransformer2DModel:
    """Width 32, one double and two single blocks."""
    config = {
        "patch_size": 1,
        "in_channels": 64,
        "num_layers": 1,
        "num_single_layers": 2,
        "attention_head_dim": 16,
        "num_attention_heads": 2,
        "joint_attention_dim": TEXT_WIDTH,
        "pooled_projection_dim": TEXT_WIDTH,
        "guidance_embeds": True,
        "axes_dims_rope": (4, 6, 6),
    }
    return FluxTransformer2DModel(**{**config, **changes})


def make_checkpoint(folder: Path, seed: int = 0, **changes: object) -> Path:
    """Write a complete diffusers folder and return it."""
    torch.manual_seed(seed)
    save_tokenizers(folder)
    clip = AutoTokenizer.from_pretrained(folder, subfolder="tokenizer")
    t5 = AutoTokenizer.from_pretrained(folder, subfolder="tokenizer_2")
    text_encoder = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(clip),
            hidden_size=TEXT_WIDTH,
            intermediate_size=32,
            projection_dim=TEXT_WIDTH,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=32,
            bos_token_id=clip.bos_token_id,
            eos_token_id=clip.eos_token_id,
            pad_token_id=clip.pad_token_id,
        )
    )
    text_encoder_2 = T5EncoderModel(
        T5Config(vocab_size=len(t5), d_model=TEXT_WIDTH, d_kv=16, d_ff=32, num_layers=1, num_heads=2)
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
    FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=vae,
        text_encoder=text_encoder,
        tokenizer=clip,
        text_encoder_2=text_encoder_2,
        tokenizer_2=t5,
        transformer=make_transformer(**changes),
    ).save_pretrained(folder)
    return folder
