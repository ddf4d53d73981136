"""plafond's training step against a bare PyTorch loop with PEFT LoRA that does the same arithmetic.

Both train the same mid-size FLUX with the same weights, noise and noise levels. Times are taken in turn, one step of
each, so that a change of the machine's speed hits both; the ratio is that of the medians. Memory is the peak of one
step by torch's profiler of the CPU allocator, without checkpointing.

    python bench/step.py [--steps 15] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from diffusers import FluxPipeline, FluxTransformer2DModel
from peft import LoraConfig

from cpu_memory import peak_bytes
from plafond.data.batches import Batch, Item
from plafond.data.buckets import Bucket
from plafond.data.folder import Picture
from plafond.families.flux import FAMILY
from plafond.job.dataset import DatasetConfig
from plafond.job.model import ModelConfig
from plafond.job.network import NetworkConfig
from plafond.job.schema import ProcessConfig
from plafond.job.train import TrainConfig
from plafond.memory.kernels import Target
from plafond.training.optim import make_optimizer
from plafond.training.randomness import generator
from plafond.training.step import MicroBatch, Stepper
from plafond.training.timesteps import draw_sigmas
from plafond.training.trainee import make_trainee

WIDTH, RANK, BATCH = 512, 16, 1
LATENT = 64
"""Latent side: 64 is a 512-pixel picture, 1,024 image tokens."""
TEXT_TOKENS = 64
TARGETS = (
    r".*transformer_blocks\.\d+\.(attn\.(to_q|to_k|to_v|to_out\.0|add_q_proj|add_k_proj|add_v_proj|to_add_out)"
    r"|ff\.net\.0\.proj|ff\.net\.2|ff_context\.net\.0\.proj|ff_context\.net\.2|norm1\.linear|norm1_context\.linear"
    r"|proj_mlp|proj_out|norm\.linear)"
)
"""The layers of plafond's default: every linear layer of every block."""


def make_model(dtype: torch.dtype) -> FluxTransformer2DModel:
    """Width 512, two double and four single blocks."""
    torch.manual_seed(0)
    model = FluxTransformer2DModel(
        num_layers=2,
        num_single_layers=4,
        attention_head_dim=64,
        num_attention_heads=WIDTH // 64,
        joint_attention_dim=256,
        pooled_projection_dim=256,
        guidance_embeds=True,
        axes_dims_rope=(16, 24, 24),
    )
    return model.to(dtype).requires_grad_(False)


def inputs(dtype: torch.dtype) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Latents (B, 16, h, w) and batched text embeddings."""
    torch.manual_seed(1)
    text = {"prompt_embeds": torch.randn(BATCH, TEXT_TOKENS, 256), "pooled": torch.randn(BATCH, 256)}
    return torch.randn(BATCH, 16, LATENT, LATENT), {name: tensor.to(dtype) for name, tensor in text.items()}


def ours(dtype: torch.dtype) -> Callable[[int], float]:
    """One step of plafond's trainer, as a function of its number."""
    process = ProcessConfig(
        type="sd_trainer",
        network=NetworkConfig(linear=RANK, linear_alpha=float(RANK)),
        train=TrainConfig(gradient_checkpointing=False, optimizer="adamw", lr=1e-4),
        model=ModelConfig(name_or_path="bench", arch="flux"),
    )
    trainee = make_trainee(make_model(dtype), FAMILY, process, Target("cpu"))
    stepper = Stepper(trainee, FAMILY, process, torch.device("cpu"), dtype)
    optimizer = make_optimizer(trainee.parameters.values(), process.train)
    latents, text = inputs(dtype)
    picture = Picture(Path("x.png"), "x.png", Path(), 512, 512, "", None, 1, 0)
    item = Item(picture, DatasetConfig(folder_path="bench"), 512, Bucket(512, 512))
    batch = Batch(0, 0, item.bucket, (item,) * BATCH)

    def step(number: int) -> float:
        micro = MicroBatch(batch=batch, latents=latents, text=text, step=number, index=0, share=1.0)
        return stepper.run([micro], optimizer).loss

    return step


def bare(dtype: torch.dtype, adapter: torch.dtype) -> Callable[[int], float]:
    """The same step written out with PEFT and nothing else."""
    model = make_model(dtype)
    model.add_adapter(LoraConfig(r=RANK, lora_alpha=RANK, target_modules=TARGETS, init_lora_weights=True))
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in parameters:
        parameter.data = parameter.data.to(adapter)
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, eps=1e-6)
    model.train()
    latents, text = inputs(dtype)
    settings = TrainConfig()
    side = LATENT // 2

    def step(number: int) -> float:
        noise = torch.randn(latents.shape, generator=generator(42, "noise", number, 0))
        sigma = draw_sigmas(BATCH, settings, 1.0, generator(42, "timestep", number, 0))
        level = sigma.view(-1, 1, 1, 1)
        noisy = ((1 - level) * latents + level * noise).to(dtype)
        velocity = model(
            hidden_states=FluxPipeline._pack_latents(noisy, BATCH, 16, LATENT, LATENT),
            timestep=sigma,
            guidance=torch.full((BATCH,), 1.0),
            pooled_projections=text["pooled"],
            encoder_hidden_states=text["prompt_embeds"],
            txt_ids=torch.zeros(TEXT_TOKENS, 3, dtype=dtype),
            img_ids=FluxPipeline._prepare_latent_image_ids(BATCH, side, side, torch.device("cpu"), dtype),
            return_dict=False,
        )[0]
        velocity = FluxPipeline._unpack_latents(velocity, LATENT * 8, LATENT * 8, 8)
        loss = (velocity.float() - (noise - latents)).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


def compare(dtype: torch.dtype, adapter: torch.dtype, steps: int) -> dict[str, float | str]:
    """Times in turn, then memory."""
    first, second = ours(dtype), bare(dtype, adapter)
    first_loss, second_loss = first(1), second(1)
    times: dict[Callable[[int], float], list[float]] = {first: [], second: []}
    for number in range(2, 2 + steps):
        for step in (first, second):
            started = time.perf_counter()
            step(number)
            times[step].append(time.perf_counter() - started)
    medians = [statistics.median(times[step]) for step in (first, second)]
    memory = [peak_bytes(lambda step=step: step(1000)) for step in (first, second)]
    return {
        "base": str(dtype).removeprefix("torch."),
        "peft_adapter": str(adapter).removeprefix("torch."),
        "first_loss_difference": abs(first_loss - second_loss),
        "plafond_seconds": medians[0],
        "peft_seconds": medians[1],
        "time_ratio": medians[0] / medians[1],
        "plafond_mib": memory[0] / 2**20,
        "peft_mib": memory[1] / 2**20,
        "memory_ratio": memory[0] / memory[1],
    }


def main() -> None:
    """Print the table; exit 1 when a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=15, help="timed steps of each")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    cases = [
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float32),
    ]
    rows = [compare(dtype, adapter, options.steps) for dtype, adapter in cases]
    if options.json:
        print(json.dumps(rows, indent=1))
    else:
        print(
            f"FLUX of width {WIDTH}, 2 + 4 blocks, {LATENT**2 // 4} image tokens, rank {RANK}, batch {BATCH}"
        )
        print("base      PEFT adapter  time (ours / PEFT)       ratio   peak memory (ours / PEFT)   ratio")
        for row in rows:
            times = f"{row['plafond_seconds']:.3f} s / {row['peft_seconds']:.3f} s"
            memory = f"{row['plafond_mib']:.1f} MiB / {row['peft_mib']:.1f} MiB"
            print(
                f"{row['base']:9} {row['peft_adapter']:12}  {times:23} {row['time_ratio']:.3f}"
                f"   {memory:27} {row['memory_ratio']:.3f}"
            )
    slow = any(float(row["time_ratio"]) > 1.03 for row in rows)
    large = any(float(row["memory_ratio"]) > 1.0 for row in rows) or float(rows[-1]["memory_ratio"]) > 0.75
    raise SystemExit(1 if slow or large else 0)


if __name__ == "__main__":
    main()
