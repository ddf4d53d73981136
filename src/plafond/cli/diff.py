"""``plafond diff A B``: what differs between two jobs, and what each difference costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

import plafond
from plafond.cli.lang import Lang, spoken


def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="A job file.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
    vram: Annotated[
        str | None, typer.Option(metavar="SIZE", help="A ceiling, as 24GB: says which of the two fits.")
    ] = None,
    gpu: Annotated[str | None, typer.Option(metavar="NAME", help='Or a card, as "RTX 4090".')] = None,
    device: Annotated[str, typer.Option(help="auto or cuda: a GPU; cpu: a virtual GPU on the CPU.")] = "auto",
    lang: Lang = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show which settings differ between two jobs, and what each does to memory and time."""
    from plafond.plan.compare import compare
    from plafond.plan.compare_report import as_json, text
    from plafond.plan.terminal import announced, ceiling_of, is_virtual, no_ceiling

    speak = spoken()
    first, second = plafond.load_job(a), plafond.load_job(b)
    virtual = is_virtual(device)
    limited = vram is not None or gpu is not None
    ceiling = ceiling_of(vram, gpu, virtual=virtual) if limited else no_ceiling(virtual=virtual)
    with announced(speak) as step:
        found = compare(first, second, ceiling, virtual=virtual, step=step)
    if json_:
        typer.echo(json.dumps(as_json(first, second, found, limited=limited), indent=1))
    else:
        typer.echo(text(first, second, found, speak, limited=limited))
