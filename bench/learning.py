"""Does a LoRA learn its subject, and only its subject?

Trains the demo job with three seeds. For each, the denoising loss with the LoRA is compared with the base model's on
pictures of the subject that were never trained on (has to fall by at least 10 %) and on rendered scenes with unrelated
captions (may rise by at most 5 %). Both models see the same noise at the same noise levels.

    python bench/learning.py [--steps N] [--json]
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import plafond
from plafond.assets.scenes import caption, held_out_scenes, render
from plafond.data.buckets import Bucket, bucket_for
from plafond.data.images import load_rgb, to_pixels
from plafond.families._contract import TextEmbedding
from plafond.families.flux import FAMILY
from plafond.job.schema import ProcessConfig
from plafond.memory.kernels import Target
from plafond.model.lora import LoraNetwork
from plafond.training.loss import noisy_latents, sample_losses
from plafond.training.trainee import load_lora_file, make_trainee

ROOT = Path(__file__).parents[1]
SEEDS = (1, 2, 3)
SIGMAS = (0.2, 0.4, 0.6, 0.8, 0.95)
DRAWS = 4
"""Noises per picture and noise level."""
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Example:
    """A latent (1, 16, h, w) with its caption's embedding, batched."""

    latent: Tensor
    text: TextEmbedding


def examples(process: ProcessConfig) -> tuple[list[Example], list[Example]]:
    """Held-out pictures of the subject, and scenes with unrelated captions."""
    source = FAMILY.locate(process.model)
    vae = FAMILY.load_vae(source, device=CPU, dtype=torch.float32)
    encoders = FAMILY.load_text_encoders(source, device=CPU, dtype=torch.float32)

    def example(pixels: Tensor, prompt: str) -> Example:
        (text,) = FAMILY.encode_text(encoders, [prompt])
        return Example(
            FAMILY.encode_image(vae, pixels[None]), {name: part[None] for name, part in text.items()}
        )

    subject = []
    for path in sorted((ROOT / "examples" / "photos-heldout").glob("*.jpg")):
        picture = load_rgb(path)
        bucket = bucket_for(*picture.size, process.datasets[0].resolution[0], FAMILY.divisor)
        subject.append(example(to_pixels(picture, bucket), path.with_suffix(".txt").read_text().strip()))
    unrelated = []
    for index, scene in enumerate(held_out_scenes(12)):
        dice = random.Random(index)
        picture = render(scene, dice, size=128)
        unrelated.append(example(to_pixels(picture, Bucket(128, 128)), caption(scene, dice)))
    return subject, unrelated


def denoising_loss(
    model: torch.nn.Module, process: ProcessConfig, network: LoraNetwork, strength: float, data: list[Example]
) -> float:
    """Mean loss over pictures, noises and noise levels, the same for every model."""
    total, count = 0.0, 0
    with torch.no_grad(), network.strength(strength):
        for index, one in enumerate(data):
            for level in SIGMAS:
                seed = torch.Generator().manual_seed(1000 * index + round(100 * level))
                latents = one.latent.expand(DRAWS, -1, -1, -1)
                noise = torch.randn(latents.shape, generator=seed)
                sigmas = torch.full((DRAWS,), level)
                text = {name: part.expand(DRAWS, *part.shape[1:]) for name, part in one.text.items()}
                noisy = noisy_latents(latents, noise, sigmas)
                velocity = FAMILY.predict(model, noisy, sigmas, text, process.train)
                total += float(sample_losses(velocity, noise - latents, "mse").sum())
                count += DRAWS
    return total / count


def measure(seed: int, steps: int | None, folder: Path) -> dict[str, float]:
    """Train with one seed; relative change of both losses, in percent."""
    overrides = [
        f"training_folder={folder}",
        f"training_seed={seed}",
        "train.disable_sampling=true",
        f"datasets.0.folder_path={ROOT / 'examples' / 'photos'}",
        f"datasets.1.folder_path={ROOT / 'examples' / 'regularisation'}",
        f"model.name_or_path={ROOT / 'src' / 'plafond' / 'assets' / 'tiny-flux'}",
    ]
    if steps:
        overrides.append(f"train.steps={steps}")
    job = plafond.load_job(ROOT / "examples" / "demo.yaml", name=f"seed{seed}", overrides=overrides)
    (result,) = plafond.train(job, device="cpu")
    (process,) = job.processes
    model = FAMILY.load_transformer(FAMILY.locate(process.model), device=CPU, dtype=torch.float32)
    network = make_trainee(model, FAMILY, process, Target("cpu")).network
    assert network is not None
    load_lora_file(network, result.files[0], FAMILY, model)
    model.eval()
    changes: dict[str, float] = {"seed": seed}
    for name, data in zip(("subject", "unrelated"), examples(process), strict=True):
        base, tuned = (denoising_loss(model, process, network, strength, data) for strength in (0.0, 1.0))
        changes |= {f"{name}_base": base, f"{name}_lora": tuned, f"{name}_change": 100 * (tuned / base - 1)}
    return changes


def main() -> None:
    """Print the table; exit 1 when a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, help="steps instead of the demo's")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(seed, options.steps, Path(folder)) for seed in SEEDS]
    if options.json:
        print(json.dumps(rows, indent=1))
    else:
        print("seed   held-out subject: base, LoRA, change   unrelated captions: base, LoRA, change")
        for row in rows:
            subject, unrelated = (
                f"{row[f'{name}_base']:10.4f} {row[f'{name}_lora']:8.4f} {row[f'{name}_change']:+7.1f} %"
                for name in ("subject", "unrelated")
            )
            print(f"{row['seed']:4.0f}   {subject:42} {unrelated}")
    missed = any(row["subject_change"] > -10 or row["unrelated_change"] > 5 for row in rows)
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
