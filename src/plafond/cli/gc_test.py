"""``plafond gc-test JOB``: whether turning gradient checkpointing off is worth it, and safe."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plafond.cli.lang import Lang, spoken
from plafond.language.said import N_, ExactSize, Number, Said, Speak, Value

if TYPE_CHECKING:
    from plafond.advice.experiment import Experiment

USE = N_("Use gradient_checkpointing: {setting}; {why}. The job file is unchanged.")


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
    lang: Lang = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run a few steps with checkpointing on, auto and off, everything else the same, and recommend one.

    The job file is not changed, and the runs stand in a folder of their own.
    """
    from plafond.advice.experiment import experiment
    from plafond.memory.expandable import set_up

    speak = spoken()
    set_up()
    from plafond.training.start import choose_device

    found = experiment(
        job,
        device=choose_device(device),
        vram=vram,
        gpu=gpu,
        steps=steps,
        overrides=tuple(set_ or ()),
        say=lambda said: typer.echo(speak(said), err=True),
        speak=speak,
    )
    typer.echo(json.dumps(as_json(found, speak), indent=1) if json_ else text(found, speak))


def text(found: Experiment, speak: Speak) -> str:
    """The report for people."""
    lines = [speak(Said(N_("caution: {text}"), {"text": caution})) for caution in found.cautions]
    columns = (N_("planned"), N_("left"), N_("measured"), N_("s/step"), N_("buckets"))
    planned, left, measured, seconds, buckets = (speak(Said(column)) for column in columns)
    lines.append(
        f"{'gradient_checkpointing':<24}{planned:>11}{left:>11}{measured:>11}{seconds:>9}  {buckets}"
    )
    for trial in found.trials:
        planned, left = speak(ExactSize(trial.planned_bytes)), speak(ExactSize(max(0, trial.left_bytes)))
        measured = "" if trial.peak_bytes is None else speak(ExactSize(trial.peak_bytes))
        seconds = "" if trial.seconds is None else speak(Number(trial.seconds, 3))
        rest = speak(trial.failure or trial.buckets)
        lines.append(f"{trial.setting:<24}{planned:>11}{left:>11}{measured:>11}{seconds:>9}  {rest}")
    values: dict[str, Value] = {"setting": found.recommended, "why": found.why}
    lines.append(speak(Said(USE, values)))
    return "\n".join(lines)


def as_json(found: Experiment, speak: Speak) -> dict[str, Any]:
    """The same for scripts; sizes in bytes."""
    trials = [
        {**asdict(trial), "failure": None if trial.failure is None else speak(trial.failure)}
        for trial in found.trials
    ]
    return {
        "schema": 1,
        "trials": trials,
        "cautions": [speak(caution) for caution in found.cautions],
        "recommended": found.recommended,
        "why": speak(found.why),
    }
