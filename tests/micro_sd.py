"""Stable Diffusion checkpoints with random weights, small enough for tests, in the real layouts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from safetensors.torch import save_file
from torch import Tensor
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from plafond.assets.tiny_tokenizers import build_clip_tokenizer
from plafond.model.native import Entry

WIDTH = 32


def make_unet(**changes: Any) -> UNet2DConditionModel:
    """Two resolutions, transformer blocks in the lower one."""
    config = {
        "sample_size": 8,
        "block_out_channels": (16, 32),
        "layers_per_block": 1,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        "attention_head_dim": 2,
        "cross_attention_dim": WIDTH,
        "norm_num_groups": 4,
    }
    return UNet2DConditionModel(**{**config, **changes})


def make_xl_unet() -> UNet2DConditionModel:
    """As the published one: deeper transformers, linear projections, sizes and a pooled vector beside the prompt."""
    return make_unet(
        transformer_layers_per_block=(1, 2),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=WIDTH + 6 * 8,
        cross_attention_dim=2 * WIDTH,
    )


def make_vae(scaling: float = 0.2) -> AutoencoderKL:
    """Four channels, an eighth of the side."""
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(8, 8, 8, 8),
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=4,
        scaling_factor=scaling,
    )


def _clip(model: Any, tokenizer: Any, act: str = "quick_gelu") -> Any:
    return model(
        CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=WIDTH,
            intermediate_size=32,
            projection_dim=WIDTH,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=32,
            hidden_act=act,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def make_scheduler(prediction: str = "epsilon") -> DDIMScheduler:
    """Stable Diffusion's schedule; a sampler that shows the model what it works on."""
    return DDIMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        clip_sample=False,
        set_alpha_to_one=False,
        steps_offset=1,
        prediction_type=prediction,
    )


def make_checkpoint(folder: Path, prediction: str = "epsilon") -> Path:
    """A Stable Diffusion 1.5 folder."""
    torch.manual_seed(0)
    tokenizer = build_clip_tokenizer()
    StableDiffusionPipeline(
        vae=make_vae(),
        text_encoder=_clip(CLIPTextModel, tokenizer),
        tokenizer=tokenizer,
        unet=make_unet(),
        scheduler=make_scheduler(prediction),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    ).save_pretrained(folder)
    return folder


def make_xl_checkpoint(folder: Path) -> Path:
    """A Stable Diffusion XL folder."""
    torch.manual_seed(0)
    tokenizer = build_clip_tokenizer()
    StableDiffusionXLPipeline(
        vae=make_vae(),
        text_encoder=_clip(CLIPTextModel, tokenizer),
        text_encoder_2=_clip(CLIPTextModelWithProjection, tokenizer, "gelu"),
        tokenizer=tokenizer,
        tokenizer_2=tokenizer,
        unet=make_xl_unet(),
        scheduler=make_scheduler(),
        add_watermarker=False,
    ).save_pretrained(folder)
    return folder


# ---------------------------------------------------------------------------------------------------- one file


def write_whole(path: Path, folder: Path, table: list[Entry], *, xl: bool) -> Path:
    """A checkpoint folder as one file under the names of the original release."""
    unet = UNet2DConditionModel.from_pretrained(folder, subfolder="unet").state_dict()
    state = {
        f"model.diffusion_model.{entry.native}{theirs}": unet[entry.diffusers[0] + ours]
        for entry in table
        for ours, theirs in entry.suffixes
        if entry.diffusers[0] + ours in unet
    }
    assert len(state) == len(unet)
    vae = AutoencoderKL.from_pretrained(folder, subfolder="vae")
    for name, tensor in vae.state_dict().items():
        state[f"first_stage_model.{_vae_name(name, len(vae.config.block_out_channels))}"] = (
            tensor[..., None, None]
            if "attentions" in name and tensor.dim() == 2 and "norm" not in name
            else tensor
        )
    first = CLIPTextModel.from_pretrained(folder, subfolder="text_encoder").state_dict()
    place = "conditioner.embedders.0.transformer." if xl else "cond_stage_model.transformer."
    state.update({f"{place}text_model.{_bare(name)}": tensor for name, tensor in first.items()})
    if xl:
        second = CLIPTextModelWithProjection.from_pretrained(folder, subfolder="text_encoder_2").state_dict()
        state.update(_open_clip({_bare(name): tensor for name, tensor in second.items()}))
    save_file({name: tensor.contiguous().clone() for name, tensor in state.items()}, path)
    return path


def _bare(name: str) -> str:
    return name.removeprefix("text_model.")


def _vae_name(name: str, blocks: int) -> str:
    name = re.sub(r"down_blocks\.(\d+)\.resnets\.", r"down.\1.block.", name)
    name = re.sub(r"down_blocks\.(\d+)\.downsamplers\.0", r"down.\1.downsample", name)
    name = re.sub(r"up_blocks\.(\d+)", lambda found: f"up.{blocks - 1 - int(found[1])}", name)
    name = name.replace("upsamplers.0", "upsample")
    name = re.sub(r"(up\.\d+)\.resnets", r"\1.block", name)
    name = re.sub(r"mid_block\.resnets\.(\d)", lambda found: f"mid.block_{int(found[1]) + 1}", name)
    name = name.replace("mid_block.attentions.0", "mid.attn_1").replace("group_norm", "norm")
    name = name.replace("to_out.0", "proj_out").replace("conv_shortcut", "nin_shortcut")
    return re.sub(r"\.to_([qkv])\.", r".\1.", name).replace("conv_norm_out", "norm_out")


def _open_clip(state: dict[str, Tensor]) -> dict[str, Tensor]:
    found = {
        "token_embedding.weight": state["embeddings.token_embedding.weight"],
        "positional_embedding": state["embeddings.position_embedding.weight"],
        "text_projection": state["text_projection.weight"].t(),
        "ln_final.weight": state["final_layer_norm.weight"],
        "ln_final.bias": state["final_layer_norm.bias"],
    }
    layers = {int(match[1]) for name in state if (match := re.match(r"encoder\.layers\.(\d+)", name))}
    for index in layers:
        ours, theirs = f"encoder.layers.{index}", f"transformer.resblocks.{index}"
        for kind in ("weight", "bias"):
            found[f"{theirs}.attn.in_proj_{kind}"] = torch.cat(
                [state[f"{ours}.self_attn.{part}_proj.{kind}"] for part in "qkv"]
            )
            for part, other in (
                ("self_attn.out_proj", "attn.out_proj"),
                ("layer_norm1", "ln_1"),
                ("layer_norm2", "ln_2"),
                ("mlp.fc1", "mlp.c_fc"),
                ("mlp.fc2", "mlp.c_proj"),
            ):
                found[f"{theirs}.{other}.{kind}"] = state[f"{ours}.{part}.{kind}"]
    return {f"conditioner.embedders.1.model.{name}": tensor for name, tensor in found.items()}
