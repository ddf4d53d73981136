"""A new family is one file: `made_up/mosaic.py` is put into the folder of the families, and everything knows it."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import plafond
from conftest import JobMaker
from micro_flux import make_checkpoint
from plafond import families
from plafond.job.json_schema import json_schema
from plafond.language.said import Said
from plafond.memory.gpus import Ceiling
from plafond.plan.forecast import Forecaster
from plafond.plan.models import published
from runs import assert_same_weights, folder_of, losses, run

PLENTY = 2**40


@pytest.fixture
def mosaic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folders = [*families.__path__, str(Path(__file__).parent / "made_up")]
    monkeypatch.setattr(families, "__path__", folders)
    families.families.cache_clear()
    yield
    families.families.cache_clear()
    sys.modules.pop("plafond.families.mosaic")


@pytest.fixture
def job(mosaic: None, make_job: JobMaker, tmp_path: Path) -> Path:
    """A job on a checkpoint of the made-up model."""
    folder = make_checkpoint(tmp_path / "mosaic")
    family = families.family_for("mosaic")
    torch.manual_seed(0)
    family.build_transformer({}).save_pretrained(folder / "transformer")  # type: ignore[operator]
    save_file({"weight": torch.randn(256, 32)}, folder / "text_encoder" / "model.safetensors")
    model = {"name_or_path": str(folder), "arch": "mosaic", "is_flux": False}
    return make_job("made", model=model, train={"disable_sampling": False, "gradient_checkpointing": True})


def test_everything_knows_it(mosaic: None) -> None:
    assert "Mosaic" in [base.title for _, base in published()]
    assert '"mosaic"' in json.dumps(json_schema())


def test_it_plans_trains_and_resumes(job: Path) -> None:
    loaded = plafond.load_job(job)
    plan = Forecaster(loaded.processes[0], Ceiling(PLENTY, 0, Said("plenty"), None), virtual=True).plan()
    peak = plan.peak.device_bytes
    (whole,) = plafond.train(loaded, device="cpu", ceiling=peak, recover=False)
    found = losses(folder_of(job))
    assert Image.open(folder_of(job).previews()[6][0]).size == (64, 64)
    kept = job.with_name("kept.safetensors")
    shutil.copy(whole.files[-1], kept)
    with pytest.raises(torch.OutOfMemoryError):
        plafond.train(loaded, device="cpu", fresh=True, ceiling=peak - 16384, recover=False)
    run(job, fresh=True, overrides=("train.steps=3",))
    assert_same_weights(kept, run(job).files[-1])
    assert losses(folder_of(job)) == found
