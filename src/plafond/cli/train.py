"""``plafond train JOB...``: run jobs, or continue them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import plafond
from plafond.cli.lang import Lang, spoken
from plafond.errors import DeviceMemoryError
from plafond.language.said import N_, Number, Said, Value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plafond.job.schema import Job
    from plafond.language.said import Speak
    from plafond.training.result import Result

OUT_OF_MEMORY = N_("out of memory {place}; what was saved is intact: {error}")


def train(
    jobs: Annotated[
        list[Path], typer.Argument(metavar="JOB...", help="AI Toolkit job files (YAML or JSON).")
    ],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, as train.steps=500; repeatable."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run instead of the file's.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    vram: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="A ceiling, as 24GB; with --device cpu a virtual GPU of that size."
        ),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help='The ceiling of a card, as "RTX 4090".')
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Train even when the plan says that it does not fit.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start anew; an earlier run is set aside, not deleted.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Unknown keys are errors.")] = False,
    lang: Lang = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the results as one JSON object.")] = False,
) -> None:
    """Train; starting the same job again continues it exactly where it stopped."""
    speak = spoken()
    loaded = [plafond.load_job(path, name=name, overrides=set_ or (), strict=strict) for path in jobs]
    for job in loaded:
        for warning in job.remarks:
            said = speak(Said(N_("warning: {text}"), {"text": warning}))
            typer.secho(said, err=True, fg=typer.colors.YELLOW)
    results: list[Result] = []
    for job in loaded:
        for result in _run(job, device=device, fresh=fresh, vram=vram, gpu=gpu, force=force):
            results.append(result)
            if not json_:
                typer.echo(summary(result, speak))
    if json_:
        typer.echo(
            json.dumps({"schema": 1, "runs": [as_json(result, speak) for result in results]}, indent=1)
        )


def _run(
    job: Job, *, device: str, fresh: bool, vram: str | None, gpu: str | None, force: bool
) -> Iterator[Result]:
    """Plan the job where there is a ceiling, then run it.

    Raises:
        DoesNotFitError: the plan says so, and `force` is not set.
        DeviceMemoryError: the device's memory was not enough.
    """
    from plafond.memory.expandable import set_up

    set_up()
    from torch import OutOfMemoryError

    from plafond.plan.before import budgets_of
    from plafond.training.recovery import place_of
    from plafond.training.start import choose_device, run_each

    chosen = choose_device(device)
    budgets = budgets_of(
        job,
        chosen,
        vram=vram,
        gpu=gpu,
        force=force,
        say=lambda text: typer.echo(text, err=True),
        speak=spoken(),
    )
    done = 0
    try:
        for result in run_each(job, device=str(chosen), fresh=fresh, budgets=budgets, speak=spoken()):
            yield result
            done += 1
    except OutOfMemoryError as error:
        typer.echo(_diagnosis(job, done, vram, gpu, virtual=chosen.type == "cpu"), err=True)
        where = place_of(error) or ""
        raise DeviceMemoryError(OUT_OF_MEMORY, place=where, error=str(error).splitlines()[0]) from error


def _diagnosis(job: Job, process: int, vram: str | None, gpu: str | None, *, virtual: bool) -> str:
    """What ``plafond doctor`` says of a process that has just run out of memory."""
    from plafond.advice.against_plan import against_job, ceiling_then
    from plafond.advice.diagnose import diagnose
    from plafond.advice.report import text
    from plafond.plan.terminal import announced
    from plafond.training.run_folder import RunFolder

    failed, speak = job.processes[process], spoken()
    log = RunFolder(failed.training_folder, failed.name or job.name).log
    found = diagnose(log.read_bytes())
    ceiling = ceiling_then(found, vram, gpu, virtual=virtual)
    with announced(speak) as step:
        return f"\n{text(against_job(found, [failed], ceiling, virtual=virtual, step=step), speak)}\n"


def summary(result: Result, speak: Speak = str) -> str:
    """What a person wants to know at the end of a run."""
    rows: list[tuple[Value, Value]] = [
        ("" if index else Said(N_("LoRA")), path) for index, path in enumerate(result.files)
    ]
    if result.loss is not None:
        from plafond.training.result import LAST

        mean = Said(
            N_("{loss} (mean of the last {steps} steps)"), {"loss": Number(result.loss, 4), "steps": LAST}
        )
        rows.append((Said(N_("loss")), mean))
    if result.sheet:
        rows.append((Said(N_("pictures")), Said(N_("{file} (before and after)"), {"file": result.sheet})))
    if result.plot:
        rows.append((Said(N_("curve")), result.plot))
    rows += [(Said(N_("note")), note) for note in result.notes]
    done = Said(N_("{name}: {steps} steps done"), {"name": result.name, "steps": result.steps})
    return "\n".join([speak(done), *(f"  {speak(label):<9}{speak(text)}" for label, text in rows)])


def as_json(result: Result, speak: Speak = str) -> dict[str, object]:
    """The result for scripts."""
    return {
        "name": result.name,
        "folder": str(result.folder),
        "steps": result.steps,
        "files": [str(path) for path in result.files],
        "loss": result.loss,
        "sheet": str(result.sheet) if result.sheet else None,
        "plot": str(result.plot) if result.plot else None,
        "notes": [speak(note) for note in result.notes],
    }
