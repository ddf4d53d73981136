"""``plafond check JOB...``: read jobs and say what they ask for, without running them."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plafond.errors import JobError, PlafondError

if TYPE_CHECKING:
    from rich.console import Console

    from plafond.job.schema import Job, ProcessConfig

_WIDTH = 100
_LABEL = 10


def check(
    jobs: Annotated[
        list[Path], typer.Argument(metavar="JOB...", help="AI Toolkit job files (YAML or JSON).")
    ],
    strict: Annotated[bool, typer.Option("--strict", help="Unknown keys are errors.")] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, as train.steps=500; repeatable."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run instead of the file's.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Read jobs and report what is in them and what is wrong, without running anything."""
    from rich.console import Console

    from plafond.job.reading import load_job

    console = Console(highlight=False)
    reports = []
    for path in jobs:
        try:
            job = load_job(path, name=name, overrides=set_ or (), strict=strict)
        except PlafondError as error:
            reports.append(_report(path, None, str(error)))
            if not json_:
                _print_line(console, "error", str(error), "bold red")
            continue
        reports.append(_report(path, job, None))
        if not json_:
            _print_job(console, job)
    if json_:
        typer.echo(json.dumps({"jobs": reports}, indent=1))
    if not all(report["ok"] for report in reports):
        raise typer.Exit(2)


def _report(path: Path, job: Job | None, error: str | None) -> dict[str, object]:
    return {
        "file": str(path),
        "ok": job is not None,
        "name": None if job is None else job.name,
        "arch": None if job is None else job.processes[0].model.arch,
        "warnings": [] if job is None else _warnings(job),
        "error": error,
    }


def _warnings(job: Job) -> list[str]:
    from plafond.families import family_for
    from plafond.job.folders import missing_folders

    found = [*job.warnings, *(str(error) for error in missing_folders(job))]
    for index, process in enumerate(job.processes):
        try:
            family_for(process.model.arch)
        except JobError as error:
            found.append(str(job.error("model.arch", error.message, process=index)))
    return found


def _print_job(console: Console, job: Job) -> None:
    console.print(f"{job.path}: {job.name}", style="bold", soft_wrap=True, markup=False)
    for process in job.processes:
        for label, text in _rows(process):
            _print_line(console, label, text)
    for warning in _warnings(job):
        _print_line(console, "warning", warning, "yellow")


def _print_line(console: Console, label: str, text: str, style: str = "") -> None:
    """Print a label and a text that is wrapped beside it; long paths stay whole, to be copied."""
    first = f"  {label:<{_LABEL}}"
    lines = textwrap.fill(
        text,
        width=_WIDTH,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )
    console.print(lines, style=style, soft_wrap=True, markup=False)


def _rows(process: ProcessConfig) -> list[tuple[str, str]]:
    model, train, network = process.model, process.train, process.network
    arch = f"{model.arch}:{model.arch_tag}" if model.arch_tag else model.arch
    trained = f"{network.type} of rank {network.linear}" if network else "the whole model (no network)"
    batches = f"batch {train.batch_size}"
    if train.gradient_accumulation > 1:
        batches += f" x {train.gradient_accumulation}"
    checkpointing = {True: "on", False: "off", "auto": "auto"}[train.gradient_checkpointing]
    rows = [
        ("model", f"{model.name_or_path} ({arch})"),
        ("trains", f"{trained}, {train.optimizer} at {train.lr:g}, {train.dtype}"),
        ("steps", f"{train.steps}, {batches}, gradient checkpointing {checkpointing}"),
    ]
    for dataset in process.datasets:
        sizes = ", ".join(map(str, dataset.resolution))
        frames = f", {dataset.num_frames} frames" if dataset.num_frames > 1 else ""
        controls = f", {len(dataset.control_path)} control" if dataset.control_path else ""
        rows.append(("dataset", f"{dataset.folder_path}: resolution {sizes}{frames}{controls}"))
    count = 0 if train.disable_sampling else len(process.sample.samples)
    previews = f"{count} every {process.sample.sample_every} steps" if count else "none"
    rows.append(("previews", previews))
    return rows
