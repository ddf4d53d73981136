"""plafond's training step against a bare PyTorch loop with PEFT LoRA that does the same arithmetic.

Both train the same mid-size FLUX with the same weights, noise and noise levels. Times are processor time of one thread,
taken in turn, one step of each, so that a change of the machine's speed hits both; the ratio is that of the medians.
Memory is the peak of one step by torch's profiler of the CPU allocator. The first three rows are without checkpointing
at width 512; the others set ``gradient_checkpointing: true`` against diffusers' own at width 1024, with the LoRA on
every linear layer of the blocks and on attention and MLP only.

    python bench/step.py [--steps 15] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

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
from plafond.job.network import NetworkConfig, NetworkKwargs
from plafond.job.schema import ProcessConfig
from plafond.job.train import TrainConfig
from plafond.memory.kernels import Target
from plafond.training.optim import make_optimizer
from plafond.training.randomness import generator
from plafond.training.step import MicroBatch, Stepper
from plafond.training.timesteps import draw_sigmas
from plafond.training.trainee import make_trainee

RANK, BATCH = 16, 1
LATENT = 64
"""Latent side: 64 is a 512-pixel picture, 1,024 image tokens."""
TEXT_TOKENS = 64
PRODUCTS = (
    r"attn\.(to_q|to_k|to_v|to_out\.0|add_q_proj|add_k_proj|add_v_proj|to_add_out)"
    r"|ff\.net\.0\.proj|ff\.net\.2|ff_context\.net\.0\.proj|ff_context\.net\.2|proj_mlp|proj_out"
)
MODULATION = r"|norm1\.linear|norm1_context\.linear|norm\.linear"


@dataclass(frozen=True)
class Case:
    """What is trained: number formats of base and PEFT adapter, the width, checkpointing, where the LoRA is."""

    dtype: torch.dtype
    adapter: torch.dtype
    width: int = 512
    checkpointing: bool = False
    modulation: bool = True

    @property
    def targets(self) -> str:
        """PEFT's expression for the layers that get a LoRA."""
        return rf".*transformer_blocks\.\d+\.({PRODUCTS}{MODULATION if self.modulation else ''})"

    @property
    def bounds(self) -> tuple[float, float]:
        """The largest ratios of time and memory."""
        if self.checkpointing:
            return 0.95, 1.0
        return 1.03, 0.75 if self.dtype != self.adapter else 1.0


def make_model(case: Case) -> FluxTransformer2DModel:
    """Two double and four single blocks."""
    torch.manual_seed(0)
    model = FluxTransformer2DModel(
        num_layers=2,
        num_single_layers=4,
        attention_head_dim=64,
        num_attention_heads=case.width // 64,
        joint_attention_dim=256,
        pooled_projection_dim=256,
        guidance_embeds=True,
        axes_dims_rope=(16, 24, 24),
    )
    return model.to(case.dtype).requires_grad_(False)


def inputs(dtype: torch.dtype) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Latents (B, 16, h, w) and batched text embeddings."""
    torch.manual_seed(1)
    text = {"prompt_embeds": torch.randn(BATCH, TEXT_TOKENS, 256), "pooled": torch.randn(BATCH, 256)}
    return torch.randn(BATCH, 16, LATENT, LATENT), {name: tensor.to(dtype) for name, tensor in text.items()}


def ours(case: Case) -> Callable[[int], float]:
    """One step of plafond's trainer, as a function of its number."""
    dtype = case.dtype
    kwargs = NetworkKwargs(ignore_if_contains=() if case.modulation else ("norm",))
    process = ProcessConfig(
        type="sd_trainer",
        network=NetworkConfig(linear=RANK, linear_alpha=float(RANK), network_kwargs=kwargs),
        train=TrainConfig(gradient_checkpointing=case.checkpointing, optimizer="adamw", lr=1e-4),
        model=ModelConfig(name_or_path="bench", arch="flux"),
    )
    trainee = make_trainee(make_model(case), FAMILY, process, Target("cpu"))
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


def bare(case: Case) -> Callable[[int], float]:
    """The same step written out with PEFT and nothing else."""
    dtype = case.dtype
    model = make_model(case)
    model.add_adapter(
        LoraConfig(r=RANK, lora_alpha=RANK, target_modules=case.targets, init_lora_weights=True)
    )
    if case.checkpointing:
        model.enable_gradient_checkpointing()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in parameters:
        parameter.data = parameter.data.to(case.adapter)
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


def compare(case: Case, steps: int) -> dict[str, float | str | bool]:
    """Times in turn, then memory."""
    first, second = ours(case), bare(case)
    first_loss, second_loss = first(1), second(1)
    times: dict[Callable[[int], float], list[float]] = {first: [], second: []}
    for number in range(2, 2 + steps):
        for step in (first, second):
            started = time.process_time()
            step(number)
            times[step].append(time.process_time() - started)
    medians = [statistics.median(times[step]) for step in (first, second)]
    memory = [peak_bytes(partial(step, 1000)) for step in (first, second)]
    time_ratio, memory_ratio = medians[0] / medians[1], memory[0] / memory[1]
    return {
        "base": str(case.dtype).removeprefix("torch."),
        "peft_adapter": str(case.adapter).removeprefix("torch."),
        "width": case.width,
        "checkpointing": case.checkpointing,
        "modulation": case.modulation,
        "first_loss_difference": abs(first_loss - second_loss),
        "plafond_seconds": medians[0],
        "peft_seconds": medians[1],
        "time_ratio": time_ratio,
        "plafond_mib": memory[0] / 2**20,
        "peft_mib": memory[1] / 2**20,
        "memory_ratio": memory_ratio,
        "kept": time_ratio <= case.bounds[0] and memory_ratio <= case.bounds[1],
    }


def main() -> None:
    """Print the table; exit 1 when a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=15, help="timed steps of each")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    half, whole = torch.bfloat16, torch.float32
    cases = [Case(whole, whole), Case(half, half), Case(half, whole)]
    cases += [Case(half, half, 1024, checkpointing=True, modulation=on) for on in (True, False)]
    rows = [compare(case, options.steps) for case in cases]
    if options.json:
        print(json.dumps(rows, indent=1))
    else:
        print(f"FLUX, 2 + 4 blocks, {LATENT**2 // 4} image tokens, rank {RANK}, batch {BATCH}")
        print(
            "width  base      PEFT adapter  checkpointing, LoRA on"
            "          time (ours / PEFT)       ratio   peak memory (ours / PEFT)   ratio"
        )
        for row in rows:
            layers = "every layer" if row["modulation"] else "attention and MLP"
            what = f"{'yes' if row['checkpointing'] else 'no'}, {layers}"
            times = f"{row['plafond_seconds']:.3f} s / {row['peft_seconds']:.3f} s"
            memory = f"{row['plafond_mib']:.1f} MiB / {row['peft_mib']:.1f} MiB"
            print(
                f"{row['width']:<6} {row['base']:9} {row['peft_adapter']:12}  {what:30} {times:23}"
                f" {row['time_ratio']:.3f}   {memory:27} {row['memory_ratio']:.3f}{'' if row['kept'] else '  MISSED'}"
            )
    raise SystemExit(0 if all(row["kept"] for row in rows) else 1)


if __name__ == "__main__":
    main()
