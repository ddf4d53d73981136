"""``plafond check JOB...``: read jobs and say what they ask for, without running them."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plafond.cli.lang import Lang, spoken
from plafond.errors import BEHIND, JobError, PlafondError
from plafond.language.said import N_, Said, Value

if TYPE_CHECKING:
    from rich.console import Console

    from plafond.job.dataset import DatasetConfig
    from plafond.job.schema import Job, ProcessConfig
    from plafond.language.said import Speak

_WIDTH = 100
_LABEL = 10
WARNING = N_("warning")


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
    lang: Lang = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Read jobs and report what is in them and what is wrong, without running anything."""
    from rich.console import Console

    from plafond.job.reading import load_job

    console, speak = Console(highlight=False), spoken()
    reports = []
    for path in jobs:
        try:
            job = load_job(path, name=name, overrides=set_ or (), strict=strict)
        except PlafondError as error:
            said = [speak(one.said) for one in (error, *error.others)]
            reports.append(_report(path, None, said, speak))
            for sentence in said if not json_ else ():
                _print_line(console, speak(Said(N_("error"))), sentence, "bold red")
            continue
        reports.append(_report(path, job, [], speak))
        if not json_:
            _print_job(console, job, speak)
    if json_:
        typer.echo(json.dumps({"jobs": reports}, indent=1))
    if not all(report["ok"] for report in reports):
        raise typer.Exit(2)


def _report(path: Path, job: Job | None, errors: list[str], speak: Speak) -> dict[str, object]:
    return {
        "file": str(path),
        "ok": job is not None,
        "name": None if job is None else job.name,
        "arch": None if job is None else job.processes[0].model.arch,
        "warnings": [] if job is None else [speak(warning) for warning in _warnings(job)],
        "error": errors[0] if errors else None,
        "errors": errors,
    }


def _warnings(job: Job) -> list[Said]:
    from plafond.families import family_for
    from plafond.job.folders import missing_folders

    found = [*job.remarks, *(error.said for error in missing_folders(job))]
    for index, process in enumerate(job.processes):
        try:
            family_for(process.model.arch)
        except JobError as error:
            found.append(job.error("model.arch", error.message, process=index).said)
    return found


def _print_job(console: Console, job: Job, speak: Speak) -> None:
    title = Said(BEHIND, {"place": job.path, "text": job.name})
    console.print(speak(title), style="bold", soft_wrap=True, markup=False)
    for process in job.processes:
        for label, text in _rows(process):
            _print_line(console, speak(Said(label)), speak(text))
    for warning in _warnings(job):
        _print_line(console, speak(Said(WARNING)), speak(warning), "yellow")


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


def _rows(process: ProcessConfig) -> list[tuple[str, Value]]:
    model, train = process.model, process.train
    arch = f"{model.arch}:{model.arch_tag}" if model.arch_tag else model.arch
    count = 0 if train.disable_sampling else len(process.sample.samples)
    every = Said(N_("{count} every {steps} steps"), {"count": count, "steps": process.sample.sample_every})
    return [
        (N_("model"), f"{model.name_or_path} ({arch})"),
        (N_("trains"), _trained(process)),
        (N_("steps"), _steps(process)),
        *((N_("dataset"), _data(dataset)) for dataset in process.datasets),
        (N_("previews"), every if count else Said(N_("none"))),
    ]


def _trained(process: ProcessConfig) -> Value:
    train, network = process.train, process.network
    trained = Said(N_("the whole model (no network)"))
    if network:
        trained = Said(N_("{type} of rank {rank}"), {"type": network.type, "rank": network.linear})
    rate = Said(N_("{optimizer} at {rate}"), {"optimizer": train.optimizer, "rate": f"{train.lr:g}"})
    return (trained, rate, train.dtype)


def _steps(process: ProcessConfig) -> Value:
    train = process.train
    batch = Said(N_("batch {size}"), {"size": train.batch_size})
    if train.gradient_accumulation > 1:
        accumulated = {"size": train.batch_size, "count": train.gradient_accumulation}
        batch = Said(N_("batch {size} x {count}"), accumulated)
    recomputed = {
        True: N_("gradient checkpointing on"),
        False: N_("gradient checkpointing off"),
        "auto": N_("gradient checkpointing auto"),
    }[train.gradient_checkpointing]
    return (train.steps, batch, Said(recomputed))


def _data(dataset: DatasetConfig) -> Value:
    read: list[Value] = [Said(N_("resolution {sides}"), {"sides": tuple(dataset.resolution)})]
    if dataset.num_frames > 1:
        read.append(Said(N_("{count} frames"), {"count": dataset.num_frames}))
    if dataset.control_path:
        read.append(Said(N_("{count} control"), {"count": len(dataset.control_path)}))
    return Said(BEHIND, {"place": dataset.folder_path, "text": tuple(read)})
