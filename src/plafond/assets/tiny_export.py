"""The export phase: trained parts to a checkpoint folder that FluxPipeline loads."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline

from plafond.assets.tiny_tokenizers import build_clip_tokenizer, build_t5_tokenizer
from plafond.assets.tiny_transformer import TinyFlux

LIMIT_BYTES = 40_000_000


def folder_bytes(folder: Path) -> int:
    """Size of all files under ``folder``."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def export(work: Path, vae: AutoencoderKL, out: Path) -> None:
    """Write the pipeline into ``out``: transformer in bfloat16, autoencoder in float16, encoders in float32.

    The distilled model is taken where there is one. transformers loads encoders in the precision they are
    stored in, and diffusers loads its models in float32 unless told otherwise, so the encoders stay float32.
    """
    found = work / "distil.pt"
    model = TinyFlux()
    model.load_state_dict(torch.load(found if found.exists() else work / "transformer.pt")["model"])
    statistics = torch.load(work / "latents.pt", mmap=True)
    vae.register_to_config(shift_factor=statistics["shift"], scaling_factor=statistics["scale"])
    pipeline = FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=1.0, use_dynamic_shifting=False),
        vae=vae.to(torch.float16),
        text_encoder=model.clip.eval(),
        tokenizer=build_clip_tokenizer(),
        text_encoder_2=model.t5.eval(),
        tokenizer_2=build_t5_tokenizer(),
        transformer=model.transformer.to(torch.bfloat16).eval(),
    )
    pipeline.save_pretrained(out)
    size = folder_bytes(out)
    print(f"exported {found.stem if found.exists() else 'transformer'} to {out}: {size / 1e6:.1f} MB")
    if size > LIMIT_BYTES:
        raise RuntimeError(f"the checkpoint takes {size} bytes, more than {LIMIT_BYTES}")
