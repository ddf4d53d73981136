"""``plafond fit JOB``: the fastest job that fits, written beside the one that does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

import plafond
from plafond.cli.lang import Lang, spoken


def fit(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="AI Toolkit job file (YAML or JSON).")],
    vram: Annotated[str | None, typer.Option(metavar="SIZE", help="The ceiling, as 24GB or 600MB.")] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help='A card, as "RTX 4090"; plafond gpus lists them.')
    ] = None,
    device: Annotated[str, typer.Option(help="auto or cuda: a GPU; cpu: a virtual GPU on the CPU.")] = "auto",
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", metavar="OUT", help="The changed job; JOB with .fit in its name by default."
        ),
    ] = None,
    allow_quality: Annotated[
        bool, typer.Option("--allow-quality", help="Allow changes that may change what is learnt.")
    ] = False,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep", metavar="KEY", help="Leave a setting as it is, as train.batch_size; repeatable."
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting first; repeatable."),
    ] = None,
    lang: Lang = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Change as little as possible so that the job fits, and write it; exit code 3 when nothing allowed is enough."""
    from plafond.plan.fit import fit as find
    from plafond.plan.fit import write
    from plafond.plan.fit_report import as_json, text

    speak = spoken()
    loaded = plafond.load_job(job, overrides=set_ or ())
    fitted = find(
        loaded,
        vram=vram,
        gpu=gpu,
        device=device,
        allow_quality=allow_quality,
        keep=keep or (),
        speak=speak,
    )
    written = write(fitted, out)
    typer.echo(
        json.dumps(as_json(fitted, written, speak), indent=1) if json_ else text(fitted, written, speak)
    )
    if not fitted.fits:
        raise typer.Exit(3)
