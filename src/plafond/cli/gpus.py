"""``plafond gpus``: the cards that ``--gpu`` knows."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from plafond.cli.lang import Lang, spoken
from plafond.language.said import N_, Number, Said
from plafond.memory.gpus import GIB, Gpu
from plafond.memory.gpus import gpus as catalogue

HEADINGS = (N_("GB"), N_("usable GiB"), "", N_("compute"), N_("GB/s"), N_("TFLOP/s"))
USABLE = N_(
    "usable: what CUDA gives a process on Linux, before its context; ~ derived from the driver's total."
)
RATES = N_("GB/s: device memory. TFLOP/s: dense bf16 (fp16 before Ampere), data sheet.")


def gpus(
    lang: Lang = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the GPUs that --gpu knows: memory as a process sees it, bandwidth, matrix rate."""
    if json_:
        typer.echo(json.dumps({"schema": 1, "gpus": [_entry(gpu) for gpu in catalogue()]}, indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    speak = spoken()
    table = Table(box=None, pad_edge=False)
    table.add_column(speak(Said(N_("name"))), no_wrap=True)
    for heading in HEADINGS:
        table.add_column(speak(Said(heading)), justify="right", no_wrap=True)
    for gpu in catalogue():
        table.add_row(
            gpu.name,
            str(gpu.marketed_gb),
            speak(Number(gpu.usable_bytes / GIB, 2)),
            "~" if gpu.usable_from == "derived" else "",
            _capability(gpu) or "-",
            f"{gpu.bandwidth / 1e9:.0f}",
            speak(Number(gpu.flops / 1e12, 1)),
        )
    console = Console(width=100, highlight=False)
    console.print(table)
    console.print()
    for note in (USABLE, RATES):
        console.print(speak(Said(note)), soft_wrap=True)


def _capability(gpu: Gpu) -> str | None:
    return None if gpu.compute_capability is None else "{}.{}".format(*gpu.compute_capability)


def _entry(gpu: Gpu) -> dict[str, object]:
    return {
        "name": gpu.name,
        "aliases": list(gpu.aliases),
        "marketed_gb": gpu.marketed_gb,
        "driver_bytes": gpu.driver_bytes,
        "usable_bytes": gpu.usable_bytes,
        "usable_from": gpu.usable_from,
        "compute_capability": _capability(gpu),
        "bandwidth_bytes_per_second": round(gpu.bandwidth),
        "flops_per_second": round(gpu.flops),
        "link_bytes_per_second": round(gpu.link),
        "display": gpu.display,
    }
