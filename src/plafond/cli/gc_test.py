"""``plafond gc-test JOB``: whether turning gradient checkpointing off is worth it, and safe."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from plafond.advice.experiment import Experiment


def gc_test(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="AI Toolkit job file (YAML or JSON).")],
    steps: Annotated[int, typer.Option(min=4, help="Steps of each setting, at least.")] = 20,
    vram: Annotated[str | None, typer.Option(metavar="SIZE", help="The ceiling, as 24GB.")] = None,
    gpu: Annotated[str | None, typer.Option(metavar="NAME", help='A card, as "RTX 4090".')] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting for all of them; repeatable."),
    ] = None,
    lang: Annotated[str | None, typer.Option(metavar="en|fr", help="Language of the report.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run a few steps with checkpointing on, auto and off, everything else the same, and recommend one.

    The job file is not changed, and the runs stand in a folder of their own.
    """
    from plafond.advice.experiment import experiment
    from plafond.memory.expandable import set_up

    set_up()
    from plafond.training.start import choose_device

    found = experiment(
        job,
        device=choose_device(device),
        vram=vram,
        gpu=gpu,
        steps=steps,
        overrides=tuple(set_ or ()),
        say=lambda text: typer.echo(text, err=True),
    )
    typer.echo(json.dumps({"schema": 1, **asdict(found)}, indent=1) if json_ else text(found))


def text(found: Experiment) -> str:
    """The report for people."""
    from plafond.memory.gpus import gib

    lines = [f"caution: {caution}" for caution in found.cautions]
    lines.append(f"{'gradient_checkpointing':<24}{'planned':>11}{'measured':>11}{'s/step':>9}  buckets")
    for trial in found.trials:
        measured = "" if trial.peak_bytes is None else gib(trial.peak_bytes)
        seconds = "" if trial.seconds is None else f"{trial.seconds:.3f}"
        rest = trial.failure or ", ".join(trial.buckets)
        lines.append(f"{trial.setting:<24}{gib(trial.planned_bytes):>11}{measured:>11}{seconds:>9}  {rest}")
    lines.append(f"Use gradient_checkpointing: {found.recommended}; {found.why}. The job file is unchanged.")
    return "\n".join(lines)
