"""``plafond demo``: train a small LoRA on real photographs, on any machine, in a few minutes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

import plafond
from plafond.errors import UsageError

EXAMPLES = Path(plafond.__file__).resolve().parents[2] / "examples"


def demo(
    output: Annotated[Path, typer.Option(help="Folder for the run.")] = Path("output"),
    steps: Annotated[int | None, typer.Option(min=1, help="Number of steps instead of the demo's.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "cpu",
) -> None:
    """Train the demo job: photographs of one cat on the tiny FLUX model that comes with plafond."""
    from plafond.cli.train import summary

    # The model is so small that a second thread gains little, and loses a lot when the machine has other work.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    job_file = EXAMPLES / "demo.yaml"
    if not job_file.is_file():
        raise UsageError(f"the demo needs a source checkout of plafond: found no {job_file}")
    overrides = [
        f"training_folder={output}",
        f"datasets.0.folder_path={EXAMPLES / 'photos'}",
        f"datasets.1.folder_path={EXAMPLES / 'regularisation'}",
        f"model.name_or_path={Path(plafond.__file__).parent / 'assets' / 'tiny-flux'}",
    ]
    if steps is not None:
        overrides.append(f"train.steps={steps}")
    job = plafond.load_job(job_file, overrides=overrides)
    typer.echo("Training a LoRA of one cat on 128-pixel pictures; this takes a few minutes on two cores.")
    for result in plafond.train(job, device=device, fresh=True):
        typer.echo(summary(result))
