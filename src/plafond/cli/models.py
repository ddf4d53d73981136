"""``plafond models``: what can be trained, and on which cards."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from plafond.cli.lang import Lang, spoken
from plafond.errors import UsageError
from plafond.language.said import N_, Number, Said, Value

if TYPE_CHECKING:
    from plafond.families._contract import BaseModel, Family
    from plafond.memory.gpus import Gpu
    from plafond.plan.models import Entry

LEGEND = N_(
    "VAE: its kind and the channels of its latents. B: billions of parameters, then their bytes in GiB, by number"
    " format. Then the smallest card (NVIDIA, with bfloat16) on which a LoRA of rank {rank} fits at this resolution,"
    " with the weights in {formats}: batch of one, gradient checkpointing, cached text embeddings, an 8-bit optimizer,"
    " a preview of the same size. Models of clips: {size}, {frames} frames, in the first column. Streamed blocks"
    " (model.layer_offloading) fit on smaller ones."
)


def models(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Only these families or architectures."),
    ] = None,
    lang: Lang = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the models that can be trained, what their weights take, and the smallest card that trains a LoRA on each.

    The cards were found by planning.
    """
    from plafond.plan.models import as_json, entries

    wanted = _chosen(names or [])
    with _progress() as step:
        found = list(entries(wanted, step))
    if json_:
        typer.echo(json.dumps({"schema": 1, "models": [as_json(entry) for entry in found]}, indent=1))
        return
    _print(found)


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on a terminal; what libraries print goes to a log."""
    import platformdirs
    from rich.console import Console
    from rich.progress import Progress

    from plafond.training.chatter import to_log

    live = sys.stderr.isatty()
    with (
        to_log(platformdirs.user_cache_path("plafond") / "plan-log.txt") as stream,
        Progress(console=Console(file=stream, force_terminal=live), transient=True, disable=not live) as bar,
    ):
        task = bar.add_task(spoken()(Said(N_("planning"))), total=None)
        yield lambda name, done, count: bar.update(task, description=name, completed=done, total=count)


def _chosen(names: list[str]) -> list[tuple[Family, BaseModel]]:
    from plafond.job.wording import hinted, nearest
    from plafond.plan.models import published

    known = published()
    words = {name for family, base in known for name in (family.name, base.arch, *family.archs)}
    for name in names:
        if name not in words:
            near = nearest(name, words)
            unknown = Said(N_("no family or architecture named {name}"), {"name": repr(name)})
            if near is None:
                raise UsageError(N_("{text}; known: {names}"), text=unknown, names=tuple(sorted(words)))
            raise UsageError(hinted(unknown, near))
    return [
        (family, base)
        for family, base in known
        if not names or {family.name, base.arch, *family.archs} & set(names)
    ]


def _print(found: list[Entry]) -> None:
    from rich.console import Console
    from rich.table import Table

    from plafond.memory.gpus import GIB
    from plafond.plan.models import CARDS, CLIP, FORMATS, RANK, SIDES, sizes_of

    console, speak = Console(width=100, highlight=False), spoken()
    facts = Table(box=None, pad_edge=False)
    facts.add_column("arch", no_wrap=True)
    facts.add_column("name_or_path", overflow="fold")
    facts.add_column(speak(Said(N_("text encoders"))), no_wrap=True)
    facts.add_column("VAE", no_wrap=True)
    for entry in found:
        vae = entry.vae.removeprefix("Autoencoder").removesuffix(" channels")
        facts.add_row(entry.base.arch, entry.base.repo, entry.base.text_encoders, vae)
    console.print(facts)
    sizes = [str(side) for side in SIDES]
    memory = Table(box=None, pad_edge=False)
    memory.add_column("arch", no_wrap=True)
    for heading in (speak(Said(N_("B"))), *FORMATS, *sizes):
        memory.add_column(heading, justify="right", no_wrap=True)
    for entry in found:
        weights = [speak(Number(size / GIB, 1)) for size in entry.weights_bytes.values()]
        cells = [
            " / ".join("-" if fit.card is None else speak(_size(fit.card)) for fit in fits)
            for fits in sizes_of(entry)
        ]
        if len(cells) == 1:
            cells += [""] * (len(sizes) - 1)
        size = speak(Number(entry.base.transformer_parameters / 1e9, 1))
        memory.add_row(entry.base.arch, size, *weights, *cells)
    console.print()
    console.print(memory)
    values: dict[str, Value] = {
        "rank": RANK,
        "formats": " / ".join(CARDS),
        "size": f"{CLIP.width}x{CLIP.height}",
        "frames": CLIP.frames,
    }
    console.print()
    console.print(speak(Said(LEGEND, values)), soft_wrap=True)


def _size(card: Gpu) -> Said:
    return Said(N_("{number} GB"), {"number": card.marketed_gb})
