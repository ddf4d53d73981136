"""``plafond models``: what can be trained, and on which cards."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from plafond.errors import UsageError

if TYPE_CHECKING:
    from plafond.families._contract import BaseModel, Family
    from plafond.plan.models import Entry


def models(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Only these families or architectures."),
    ] = None,
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
        task = bar.add_task("planning", total=None)
        yield lambda name, done, count: bar.update(task, description=name, completed=done, total=count)


def _chosen(names: list[str]) -> list[tuple[Family, BaseModel]]:
    from plafond.job.wording import nearest
    from plafond.plan.models import published

    known = published()
    words = {name for family, base in known for name in (family.name, base.arch, *family.archs)}
    for name in names:
        if name not in words:
            near = nearest(name, words)
            hint = f"; did you mean {near}?" if near else f"; known: {', '.join(sorted(words))}"
            raise UsageError(f"no family or architecture named {name!r}{hint}")
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

    console = Console(width=100, highlight=False)
    facts = Table(box=None, pad_edge=False)
    facts.add_column("arch", no_wrap=True)
    facts.add_column("name_or_path", overflow="fold")
    facts.add_column("text encoders", no_wrap=True)
    facts.add_column("VAE", no_wrap=True)
    for entry in found:
        vae = entry.vae.removeprefix("Autoencoder").removesuffix(" channels")
        facts.add_row(entry.base.arch, entry.base.repo, entry.base.text_encoders, vae)
    console.print(facts)
    sizes = [str(side) for side in SIDES]
    memory = Table(box=None, pad_edge=False)
    memory.add_column("arch", no_wrap=True)
    for heading in ("B", *FORMATS, *sizes):
        memory.add_column(heading, justify="right", no_wrap=True)
    for entry in found:
        weights = [f"{size / GIB:.1f}" for size in entry.weights_bytes.values()]
        cells = [
            " / ".join("-" if fit.card is None else f"{fit.card.marketed_gb} GB" for fit in fits)
            for fits in sizes_of(entry)
        ]
        if len(cells) == 1:
            cells += [""] * (len(sizes) - 1)
        size = f"{entry.base.transformer_parameters / 1e9:.1f}"
        memory.add_row(entry.base.arch, size, *weights, *cells)
    console.print()
    console.print(memory)
    console.print(
        "\nVAE: its kind and the channels of its latents. B: billions of parameters, then their bytes in GiB, by number"
        " format. Then the smallest card (NVIDIA, with bfloat16)"
        f" on which a LoRA of rank {RANK} fits at this resolution, with the weights in {' / '.join(CARDS)}: batch"
        " of one, gradient checkpointing, cached text embeddings, an 8-bit optimizer, a preview of the same size."
        f" Models of clips: {CLIP.width}x{CLIP.height}, {CLIP.frames} frames, in the first column. Streamed blocks"
        " (model.layer_offloading) fit on smaller ones.",
        soft_wrap=True,
    )
