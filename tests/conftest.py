"""Shared by all tests: one thread, no network, a micro FLUX checkpoint and a job on it."""

from __future__ import annotations

import gc
import os
import tempfile

# Before torch is imported anywhere: the models are so small that a second thread only waits.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
# sentences are compared in English, whoever runs the tests
os.environ["LANGUAGE"] = "en"
# caches and records of this user are neither read nor written
os.environ["XDG_CACHE_HOME"] = os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="plafond-tests-")

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from ruamel.yaml import YAML


@pytest.fixture(scope="session")
def micro_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from micro_flux import make_checkpoint

    return make_checkpoint(tmp_path_factory.mktemp("micro-flux"))


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five noisy pictures of two shapes, with captions."""
    folder = tmp_path_factory.mktemp("photos")
    dice = np.random.default_rng(0)
    for index in range(5):
        height, width = (72, 96) if index % 2 else (80, 80)
        pixels = dice.integers(0, 255, (height // 8, width // 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC).save(
            folder / f"{index}.png"
        )
        (folder / f"{index}.txt").write_text(f"a photo of sks thing, number {index}")
    return folder


JobMaker = Callable[..., Path]


@pytest.fixture
def make_job(tmp_path: Path, micro_checkpoint: Path, photos: Path) -> JobMaker:
    """Write a job file on the micro model; keyword arguments replace whole sections' keys, as ``train={...}``."""

    def make(name: str = "micro", **sections: dict[str, Any] | None) -> Path:
        process: dict[str, Any] = {
            "type": "sd_trainer",
            "training_folder": str(tmp_path / "out"),
            "network": {"type": "lora", "linear": 4, "linear_alpha": 4},
            "save": {"dtype": "float32", "save_every": 5, "max_step_saves_to_keep": 3},
            "datasets": [{"folder_path": str(photos), "resolution": [64], "caption_dropout_rate": 0.1}],
            "train": {
                "batch_size": 2,
                "steps": 6,
                "optimizer": "adamw",
                "lr": 1e-3,
                "dtype": "fp32",
                "cache_text_embeddings": True,
                "noise_scheduler": "flowmatch",
                "disable_sampling": True,
            },
            "model": {"name_or_path": str(micro_checkpoint), "is_flux": True},
            "sample": {
                "width": 64,
                "height": 64,
                "sample_steps": 2,
                "sample_every": 100,
                "guidance_scale": 4,
                "prompts": ["a photo of sks thing"],
            },
        }
        for key, changes in sections.items():
            if changes is None:
                del process[key]
            elif key == "datasets":
                process[key] = [{**process[key][0], **changes}]
            else:
                process[key] = {**process[key], **changes}
        document = {"job": "extension", "config": {"name": name, "process": [process]}}
        path = tmp_path / f"{name}.yaml"
        with path.open("w", encoding="utf-8") as file:
            YAML(typ="safe").dump(document, file)
        return path

    return make


def pytest_collection_finish() -> None:
    """Keep what is imported by now out of later collections of garbage, each of which would look at all of it."""
    gc.freeze()
