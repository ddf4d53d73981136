"""What a run leaves behind: its result, the curve and the sheet drawn of it, and the job as it was run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from plafond import __version__
from plafond.job.schema import Job, ProcessConfig
from plafond.language.said import N_, Said, Speak
from plafond.report.loss_plot import loss_plot
from plafond.report.sheet import contact_sheet
from plafond.training.run_folder import RunFolder, write_atomically

LAST = 50
"""Steps over which the loss of a result is the mean."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run left behind.

    Args:
        name: the run's.
        folder: its folder.
        steps: so many are done.
        files: the final weights.
        loss: mean of the last steps.
        sheet: previews before and after, side by side.
        plot: the loss curve.
        notes: what the user should know.
    """

    name: str
    folder: Path
    steps: int
    files: tuple[Path, ...]
    loss: float | None
    sheet: Path | None = None
    plot: Path | None = None
    notes: tuple[str | Said, ...] = ()


def result_of(
    folder: RunFolder,
    process: ProcessConfig,
    steps: int,
    files: tuple[Path, ...],
    notes: Sequence[str | Said],
    speak: Speak,
) -> Result:
    """The result of a run after so many steps; draws its loss curve and its sheet of previews, and words them."""
    metrics = folder.read_metrics()
    plot = folder.path / "loss.png"
    loss_plot(plot, metrics, folder.name, speak)
    losses = [row["loss"] for row in metrics if row.get("applied")][-LAST:]
    return Result(
        name=folder.name,
        folder=folder.path,
        steps=steps,
        files=files,
        loss=sum(losses) / len(losses) if losses else None,
        sheet=_sheet(folder, process, speak),
        plot=plot,
        notes=tuple(notes),
    )


def _sheet(folder: RunFolder, process: ProcessConfig, speak: Speak) -> Path | None:
    shown = folder.previews()
    items = process.sample.samples
    if not shown or not items:
        return None
    first, last = min(shown), max(shown)
    titles = {
        step: Said(N_("after {steps} steps"), {"steps": step}) if step else Said(N_("before"))
        for step in (first, last)
    }
    columns = [
        (speak(title), [shown[step].get(row) for row in range(len(items))]) for step, title in titles.items()
    ]
    target = folder.path / "before-after.png"
    contact_sheet(target, [item.prompt for item in items], columns)
    return target


def heading(job: Job, process: ProcessConfig, device: torch.device) -> str:
    """What begins in a log that several runs append to, and the settings that a diagnosis asks for."""
    train, model = process.train, process.model
    settings = {
        "arch": model.arch,
        "gradient_checkpointing": json.dumps(train.gradient_checkpointing),
        "batch_size": train.batch_size,
        "optimizer": train.optimizer,
        "quantize": json.dumps(model.quantize),
        "cache_text_embeddings": json.dumps(process.caches_text),
        "num_frames": max((data.num_frames for data in process.datasets), default=1),
    }
    written = ", ".join(f"{key}: {value}" for key, value in settings.items())
    return f"# Running job: {job.name} on {device}, plafond {__version__}, torch {torch.__version__}; {written}\n"


def write_job(job: Job, process: ProcessConfig, folder: RunFolder) -> None:
    """Write ``config.yaml``: the job as it is run, with every value resolved."""
    from ruamel.yaml import YAML

    values = process.model_dump(mode="json", exclude_none=True, exclude={"model": {"arch_tag"}})
    document = {
        "job": "extension",
        "config": {"name": job.name, "process": [values]},
        "meta": dict(job.meta),
    }

    def write(path: Path) -> None:
        with path.open("w", encoding="utf-8") as file:
            YAML(typ="safe", pure=True).dump(document, file)

    write_atomically(folder.path / "config.yaml", write)
