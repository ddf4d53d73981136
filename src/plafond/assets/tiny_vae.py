"""The autoencoder phase: an f8, 16-channel AutoencoderKL small enough for two CPU cores."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import MutableSequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor, nn

from plafond.assets import scenes
from plafond.assets.tiny_optim import Clock, Replicas

LATENT_CHANNELS = 16
KL_WEIGHT = 5e-4
SNAPSHOT_SECONDS = 240.0


def build_vae() -> AutoencoderKL:
    """A fresh autoencoder: pictures (N, 3, H, W) in -1..1 to latents (N, 16, H/8, W/8)."""
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(24, 48, 96, 160),
        layers_per_block=1,
        latent_channels=LATENT_CHANNELS,
        norm_num_groups=8,
        mid_block_add_attention=False,
        use_quant_conv=False,
        use_post_quant_conv=False,
        sample_size=128,
    )


def _vae_picture(seed: int) -> NDArray[np.uint8]:
    """Picture number ``seed`` of the autoencoder's pool, (128, 128, 3): scene, dead leaves or photograph."""
    rng = random.Random(seed)
    kind = seed % 10
    if kind < 3:
        return np.asarray(scenes.render(scenes.sample_scene(rng), rng))
    if kind < 6:
        return np.asarray(scenes.dead_leaves(rng))
    picture = scenes.load_photo(rng.choice(scenes.PHOTOS))
    side = min(picture.size) * rng.uniform(0.4, 1.0)
    left, top = rng.uniform(0, picture.width - side), rng.uniform(0, picture.height - side)
    crop = picture.resize((128, 128), Image.Resampling.LANCZOS, box=(left, top, left + side, top + side))
    if rng.random() < 0.5:
        crop = ImageOps.mirror(crop)
    pixels = np.asarray(crop).astype(np.float32)
    # Ten photographs hold few hues: gains and channel swaps teach the decoder the others.
    if rng.random() < 0.6:
        pixels = pixels[..., rng.sample(range(3), 3)] * np.array(
            [rng.uniform(0.6, 1.2) for _ in range(3)], np.float32
        )
    return np.clip(pixels, 0, 255).astype(np.uint8)


def picture_pool(path: Path, count: int) -> Tensor:
    """``count`` pictures (N, 3, 128, 128) uint8, rendered once into ``path``."""
    if not path.exists():
        with ProcessPoolExecutor(2) as pool:
            pictures = list(pool.map(_vae_picture, range(count), chunksize=64))
        np.save(path, np.stack(pictures))
    return torch.from_numpy(np.load(path)).permute(0, 3, 1, 2)


def _crops(pool: Tensor, batch: int, side: int) -> Tensor:
    """Random crops (batch, 3, side, side) in -1..1 out of the pool, half of them mirrored."""
    crops = []
    for index in torch.randint(len(pool), (batch,)).tolist():
        top, left = torch.randint(128 - side + 1, (2,)).tolist()
        crop = pool[index, :, top : top + side, left : left + side]
        crops.append(crop.flip(-1) if torch.rand(()) < 0.5 else crop)
    return (torch.stack(crops).float() / 127.5 - 1).contiguous(memory_format=torch.channels_last)


def reconstruction_loss(output: Tensor, target: Tensor) -> Tensor:
    """Absolute and squared error, plus the error of three Laplacian-pyramid bands, which keeps edges sharp."""
    error = output.float() - target
    loss = error.abs().mean() + 2 * error.square().mean()
    for _ in range(3):
        low = F.avg_pool2d(error, 2)
        loss = loss + (error - F.interpolate(low, scale_factor=2.0)).abs().mean()
        error = low
    return loss


def _use_muon(name: str, param: nn.Parameter) -> bool:
    return param.ndim == 4 and "conv_in" not in name and "conv_out" not in name


def _vae_loss(
    vae: AutoencoderKL, pool: Tensor, whole: bool, half: bool, errors: MutableSequence[float]
) -> Tensor:
    """Loss on a share of a batch: two whole pictures, or eight 64 px crops; with ``half``, at half size.

    The mean squared error for 0..1 pixels is appended to ``errors`` unless ``half``.
    """
    target = _crops(pool, 2, 128) if whole else _crops(pool, 8, 64)
    with torch.autocast("cpu", torch.bfloat16):
        mean, logvar = vae.encoder(target).float().chunk(2, dim=1)
        logvar = logvar.clamp(-30, 20)
        latent = mean + torch.randn_like(mean) * torch.exp(0.5 * logvar)
        if half:
            # Half-size latents must decode to the half-size picture: smooth latents are easier to generate.
            target, latent = F.avg_pool2d(target, 2), F.avg_pool2d(latent, 2)
        output = vae.decoder(latent).float()
    kl = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).mean()
    if not half:
        errors.append((output.detach() - target).square().mean().item() / 4)
    loss: Tensor = reconstruction_loss(output, target) + KL_WEIGHT * kl
    return loss


def train_vae(work: Path, minutes: float, pool_size: int = 6000, lr: float = 2e-3) -> None:
    """Train the autoencoder for ``minutes``; resumes from, and writes, ``work/vae.pt``."""
    torch.manual_seed(0)
    pool = picture_pool(work / "vae_pool.npy", pool_size)
    vae = build_vae().to(memory_format=torch.channels_last)
    snapshot, spent, step = work / "vae.pt", 0.0, 0
    state: dict[str, Any] | None = torch.load(snapshot) if snapshot.exists() else None
    if state is not None:
        vae.load_state_dict(state["model"])
        spent, step = state["spent"], state["step"]
    replicas = Replicas(vae, lr, _use_muon, torch.float32)
    if state is not None and "optimizers" in state:
        replicas.optimizers.load_state_dict(state["optimizers"])
    clock = Clock(minutes, spent)
    saved = clock.spent()
    errors: deque[float] = deque(maxlen=100)
    while True:
        over = clock.fraction() >= 1.0
        # Whole pictures at the end: the normalisation layers then see the statistics they meet in use.
        whole = clock.fraction() > 0.75
        half = not whole and step % 6 == 5
        replicas.step(partial(_vae_loss, pool=pool, whole=whole, half=half, errors=errors), clock.factor())
        step += 1
        if step % 50 == 0:
            psnr = -10 * math.log10(sum(errors) / len(errors))
            print(f"vae step {step}: {psnr:.2f} dB, {clock.describe()}", flush=True)
        if over or clock.spent() - saved > SNAPSHOT_SECONDS:
            saved = clock.spent()
            optimizers = replicas.optimizers.state_dict()
            state = {"model": vae.state_dict(), "optimizers": optimizers, "spent": saved, "step": step}
            torch.save(state, work / "vae.tmp")
            (work / "vae.tmp").rename(snapshot)
        if over:
            return


def load_vae(work: Path) -> AutoencoderKL:
    """The trained autoencoder of ``work``, frozen."""
    vae = build_vae()
    vae.load_state_dict(torch.load(work / "vae.pt")["model"])
    return vae.requires_grad_(False).to(memory_format=torch.channels_last)


@torch.no_grad()
def encode(vae: AutoencoderKL, pictures: Tensor) -> Tensor:
    """Mean latents (N, 16, 16, 16), not normalised, of uint8 pictures (N, 3, 128, 128)."""
    target = (pictures.float() / 127.5 - 1).contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        mean: Tensor = vae.encoder(target)[:, :LATENT_CHANNELS]
    return mean.float()
