"""Verdicts of the plan against real runs under a virtual ceiling.

Draws jobs on the tiny FLUX model (checkpointing, batch, buckets, accumulation, average, text encoder kept or not,
previews) and a ceiling near each job's predicted peak, and runs them: the plan has to say *fits* exactly when the run
completes.

    python bench/verdicts.py [--draws 60] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"

import torch

import plafond
from plafond.language.said import Said
from plafond.memory.gpus import Ceiling
from plafond.plan.forecast import Forecaster

ROOT = Path(__file__).resolve().parents[1]
MODEL = Path(plafond.__file__).parent / "assets" / "tiny-flux"
PHOTOS = ROOT / "examples" / "photos"


def draw(dice: random.Random) -> dict[str, Any]:
    """One random job's settings."""
    settings: dict[str, Any] = {
        "train.gradient_checkpointing": dice.choice([True, False]),
        "train.batch_size": dice.choice([1, 1, 2, 3]),
        "train.gradient_accumulation": dice.choice([1, 1, 2]),
        "train.ema_config.use_ema": dice.choice([True, False]),
        "train.cache_text_embeddings": dice.choice([True, True, False]),
        "train.optimizer": dice.choice(["adamw", "adamw8bit", "lion", "adafactor"]),
        "train.disable_sampling": dice.choice([True, True, False]),
        "datasets.0.resolution": dice.choice([[64], [96], [128], [64, 96], [64, 128]]),
        "network.linear": dice.choice([4, 16, 64]),
    }
    # long enough to meet every bucket: a plan covers what an epoch holds
    seen = settings["train.batch_size"] * settings["train.gradient_accumulation"]
    settings["train.steps"] = len(settings["datasets.0.resolution"]) * 6 // seen + 4
    return settings


def job_file(folder: Path) -> Path:
    """A job on the tiny model and some of the photographs."""
    photos = folder / "photos"
    photos.mkdir()
    for path in sorted(PHOTOS.glob("*-0[1-6].*")):
        shutil.copy(path, photos / path.name)
    process = {
        "type": "sd_trainer",
        "training_folder": str(folder / "out"),
        "network": {"type": "lora", "linear": 4, "linear_alpha": 4},
        "save": {"dtype": "float32", "save_every": 100},
        "datasets": [{"folder_path": str(photos), "resolution": [64]}],
        "train": {"steps": 3, "lr": 1e-4, "dtype": "fp32", "noise_scheduler": "flowmatch"},
        "model": {"name_or_path": str(MODEL), "is_flux": True},
        "sample": {"width": 64, "height": 64, "sample_steps": 2, "prompts": ["a cat"], "guidance_scale": 1},
    }
    path = folder / "job.json"
    path.write_text(json.dumps({"job": "extension", "config": {"name": "verdict", "process": [process]}}))
    return path


def completes(job: Path, overrides: list[str], ceiling: int) -> bool:
    """Whether the run gets to its end under the ceiling."""
    for cache in (job.parent / "photos").glob("_*_cache"):
        shutil.rmtree(cache)  # so that every run encodes its text and pictures
    try:
        loaded = plafond.load_job(job, overrides=overrides)
        plafond.train(loaded, device="cpu", fresh=True, ceiling=ceiling, recover=False)
    except torch.OutOfMemoryError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    dice = random.Random(options.seed)
    table = {(said, done): 0 for said in (True, False) for done in (True, False)}
    with tempfile.TemporaryDirectory() as folder:
        job = job_file(Path(folder))
        for number in range(1, options.draws + 1):
            started = time.monotonic()
            overrides = [f"{key}={json.dumps(value)}" for key, value in draw(dice).items()]
            (process,) = plafond.load_job(job, overrides=overrides).processes
            plan = Forecaster(process, Ceiling(2**40, 0, Said("plenty"), None), virtual=True).plan()
            # half of the ceilings within 1 % of the peak, where a wrong verdict would show
            spread = dice.choice([0.01, 0.2])
            ceiling = round(plan.peak.device_bytes * (1 + dice.uniform(-spread, spread)))
            said = plan.peak.device_bytes <= ceiling
            done = completes(job, overrides, ceiling)
            table[said, done] += 1
            mark = "" if said == done else "  WRONG"
            print(
                f"{number:3} {'fits' if said else 'oom ':4} {'completed' if done else 'ran out  '}"
                f" {ceiling / plan.peak.device_bytes - 1:+7.2%} of {plan.peak.device_bytes / 2**20:7.2f} MiB"
                f" ({plan.peak.phase}) {time.monotonic() - started:4.1f} s{mark}",
                flush=True,
            )
            if mark:
                print("    " + " ".join(overrides))
    wrong = table[True, False] + table[False, True]
    print(
        f"{options.draws} draws: {table[True, True]} fit and completed, {table[False, False]} did not and ran out;"
        f" false fits {table[True, False]}, false alarms {table[False, True]}"
    )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
