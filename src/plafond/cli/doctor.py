"""``plafond doctor [JOB] --log FILE``: why a run failed, and what to change first."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import plafond
from plafond.cli.lang import Lang, spoken
from plafond.errors import BEHIND, UsageError
from plafond.language.said import N_, Said
from plafond.training.run_folder import RunFolder, in_order_of_time

if TYPE_CHECKING:
    from plafond.job.schema import Job

UNNAMED = N_("{place}: {text}; name it with --log FILE")


def doctor(
    job: Annotated[
        Path | None,
        typer.Argument(
            metavar="[JOB]", help="The job that was run: the diagnosis is checked by planning it."
        ),
    ] = None,
    log: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The run's log, by whichever trainer; - is standard input."),
    ] = None,
    vram: Annotated[
        str | None, typer.Option(metavar="SIZE", help="The ceiling it ran under, as 24GB.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help='The card it ran on, as "RTX 4090".')
    ] = None,
    device: Annotated[str, typer.Option(help="auto or cuda: a GPU; cpu: a virtual GPU on the CPU.")] = "auto",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of the job; repeatable."),
    ] = None,
    lang: Lang = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Read the log of a failed run: which phase died, why, how sure that is, and what to change first.

    Logs of AI Toolkit, sd-scripts, musubi-tuner, OneTrainer, SimpleTuner, diffusion-pipe and plafond are read. With
    a job, its run folder's log is the default, and the diagnosis is held against plafond's own plan.
    """
    from plafond.advice.diagnose import diagnose
    from plafond.advice.facts import is_ai_toolkits
    from plafond.advice.report import as_json, text
    from plafond.advice.sentences import NOTHING_FAILED, WEAK_SAMPLES

    if device not in ("auto", "cuda", "cpu"):
        raise UsageError(N_("--device {name}: expected auto, cuda or cpu"), name=device)
    speak = spoken()
    loaded = None if job is None else plafond.load_job(job, overrides=set_ or ())
    data = _read(log, loaded)
    found = diagnose(data)
    if Said(NOTHING_FAILED) in found.summary:  # then the samples are what brought its reader here
        found = replace(found, summary=(*found.summary, Said(WEAK_SAMPLES)))
    elif loaded is not None and found.failed:
        from plafond.advice.against_plan import against_job, ceiling_then
        from plafond.plan.terminal import announced

        virtual, theirs = device == "cpu", is_ai_toolkits(data)
        ceiling = ceiling_then(found, vram, gpu, virtual=virtual)
        with announced(speak) as step:
            found = against_job(found, loaded.processes, ceiling, virtual=virtual, theirs=theirs, step=step)
    typer.echo(json.dumps(as_json(found, speak), indent=1) if json_ else text(found, speak))


def _read(log: str | None, job: Job | None) -> bytes:
    """The log's bytes.

    Raises:
        UsageError: there is none, or it cannot be read.
    """
    if log == "-":
        return sys.stdin.buffer.read()
    if log is not None:
        return _bytes(Path(log).expanduser())
    if job is None:
        raise UsageError(N_("doctor needs a log: --log FILE, or --log - for standard input"))
    folders = [RunFolder(process.training_folder, process.name or job.name) for process in job.processes]
    # a process that was not reached this time has no log, or an older one
    logs = in_order_of_time(folder.log for folder in folders) or [folders[0].log]
    return b"\n".join(_bytes(path, UNNAMED) for path in logs)


def _bytes(path: Path, text: str = BEHIND) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(text, place=path, text=error.strerror or str(error)) from error
