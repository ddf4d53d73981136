"""What a run leaves behind: its result, the curve and the sheet drawn of it, and the job as it was run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from plafond.job.schema import Job, ProcessConfig
from plafond.language.said import Said
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
) -> Result:
    """The result of a run after so many steps; draws its loss curve and its sheet of previews."""
    metrics = folder.read_metrics()
    plot = folder.path / "loss.png"
    loss_plot(plot, metrics, folder.name)
    losses = [row["loss"] for row in metrics if row.get("applied")][-LAST:]
    return Result(
        name=folder.name,
        folder=folder.path,
        steps=steps,
        files=files,
        loss=sum(losses) / len(losses) if losses else None,
        sheet=_sheet(folder, process),
        plot=plot,
        notes=tuple(notes),
    )


def _sheet(folder: RunFolder, process: ProcessConfig) -> Path | None:
    shown = folder.previews()
    items = process.sample.samples
    if not shown or not items:
        return None
    first, last = min(shown), max(shown)
    titles = {first: "before" if first == 0 else f"after {first} steps", last: f"after {last} steps"}
    columns = [(title, [shown[step].get(row) for row in range(len(items))]) for step, title in titles.items()]
    target = folder.path / "before-after.png"
    contact_sheet(target, [item.prompt for item in items], columns)
    return target


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
