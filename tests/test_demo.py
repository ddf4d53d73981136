"""The demo: what it shows, and that it notices when something does not go as the plan says."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import plafond
from plafond.errors import PlafondError
from plafond.job.schema import Job
from plafond.language.said import Said
from plafond.training.recovery import name_place

demo = importlib.import_module("plafond.cli.demo")  # the package has the command under that name


def cli(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "plafond", "demo", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def test_the_demo_fails_as_predicted_and_then_fits_as_predicted(tmp_path: Path) -> None:
    done = cli("--output", tmp_path, "--steps", 2)
    assert done.returncode == 0, done.stderr
    shown = done.stdout
    assert "plan       Does not fit: train at 128x128 needs " in shown
    assert "remedy     checkpointing_on" in shown
    assert "predicted  out of memory in train at 128x128\n" in shown
    assert re.search(r"happened   out of memory .*on a batch of 4 at 128x128\n", shown)
    assert "plan       Fits: the peak is " in shown
    assert "chelsea: 2 steps done" in shown
    said, was = re.search(r"steps: predicted ([\d.]+) MiB, measured ([\d.]+) MiB", shown).groups()  # type: ignore[union-attr]
    assert float(said) == pytest.approx(float(was), rel=0.002)
    assert (tmp_path / "chelsea" / "before-after.png").is_file()
    assert not list((tmp_path / "chelsea-out-of-memory").glob("*.safetensors"))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """The demo's job as it fails."""
    model = Path(plafond.__file__).parent / "assets" / "tiny-flux"
    overrides = [
        f"training_folder={tmp_path}",
        f"datasets.0.folder_path={demo.EXAMPLES / 'photos'}",
        f"datasets.1.folder_path={demo.EXAMPLES / 'regularisation'}",
        f"model.name_or_path={model}",
        "train.gradient_checkpointing=false",
    ]
    return plafond.load_job(demo.EXAMPLES / "demo.yaml", overrides=overrides)


def raising(error: Exception | None) -> object:
    def run(job: Job) -> None:
        if error is not None:
            raise error

    return run


def noted(note: str) -> torch.OutOfMemoryError:
    error = torch.OutOfMemoryError("CUDA out of memory.")
    name_place(error, Said(note))
    return error


@pytest.mark.parametrize(
    ("ceiling", "outcome", "message"),
    [
        ("200MB", None, "without checkpointing the job fits into 200MB"),
        ("75MB", None, "the plan said out of memory in train at 128x128, but the run completed"),
        (
            "75MB",
            noted("at step 1, on a batch of 1 at 160x96"),
            "at 160x96, not in train at 128x128 as the plan",
        ),
        (
            "75MB",
            torch.OutOfMemoryError("CUDA out of memory."),
            "memory ran out outside of training, not in train",
        ),
    ],
    ids=["the plan fits", "the run completes", "another bucket", "another phase"],
)
def test_a_failure_that_does_not_come_as_predicted_is_one(
    job: Job, monkeypatch: pytest.MonkeyPatch, ceiling: str, outcome: Exception | None, message: str
) -> None:
    monkeypatch.setattr(demo, "CEILING", ceiling)
    monkeypatch.setattr(demo, "_run", raising(outcome))
    with pytest.raises(PlafondError, match=re.escape(message)) as caught:
        demo.fails_as_predicted(job)
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(
    ("ceiling", "message"),
    [
        ("75MB", "the job does not fit into 75MB"),
        ("200MB", "the plan said that it fits, but memory ran out at step 3, on a batch of 4 at 128x128"),
    ],
    ids=["the plan does not fit", "the run fails"],
)
def test_a_run_that_does_not_fit_is_a_failure(
    job: Job, monkeypatch: pytest.MonkeyPatch, ceiling: str, message: str
) -> None:
    monkeypatch.setattr(demo, "CEILING", ceiling)
    monkeypatch.setattr(demo, "_run", raising(noted("at step 3, on a batch of 4 at 128x128")))
    with pytest.raises(PlafondError, match=re.escape(message)):
        demo.fits_as_predicted(job)
