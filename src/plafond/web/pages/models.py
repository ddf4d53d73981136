"""What can be trained: each model with what its weights take, and the smallest card that trains a LoRA on it."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from nicegui import run, ui

from plafond.memory.gpus import GIB
from plafond.plan.models import CARDS, CLIP, FORMATS, RANK, SIDES, Entry, Fit, entries, published, sizes_of
from plafond.web.pages.frame import frame, heading
from plafond.web.site import Site
from plafond.web.words import N_, Words

LEGEND = N_(
    "Weights in GiB, by number format. Then the smallest card on which a LoRA of rank {rank} fits at this resolution,"
    " with the weights in {formats}: one picture a step, gradient checkpointing, cached text embeddings, an 8-bit"
    " optimizer, a preview of the same size. Models of clips: {clip}. Found by planning; streamed blocks and Make it"
    " fit go below."
)

CELL = """
<q-td :props="props">
  <span class="name">{{ props.row.title }}</span>
  <div class="path">{{ props.row.repo }}</div>
</q-td>
"""


def add(site: Site) -> None:
    """The route ``/models``."""

    @ui.page("/models")
    async def models(request: Request) -> None:
        found = await run.io_bound(lambda: list(entries(published()))) or []
        with frame(site, request, N_("Models"), at="/models") as t:
            with ui.element("div").classes("between"):
                heading(t("Models"), "h1")
                search = ui.input(placeholder=t("Search")).props(
                    f'outlined dense clearable debounce=200 aria-label="{t("Search")}"'
                )
            clip = t("{size}, {count} frames", size=f"{CLIP.width}×{CLIP.height}", count=CLIP.frames)
            ui.label(t(LEGEND, rank=RANK, formats=" / ".join(CARDS), clip=clip)).classes("soft")
            search.bind_value(_table(t, found), "filter")


def _table(t: Words, found: list[Entry]) -> ui.table:
    columns: list[dict[str, Any]] = [
        {"name": "title", "label": t("Model"), "field": "title", "sortable": True, "align": "left"},
        {"name": "arch", "label": "arch", "field": "arch", "sortable": True, "align": "left"},
        {"name": "encoders", "label": t("Text encoders"), "field": "encoders", "align": "left"},
        {"name": "size", "label": t("Parameters"), "field": "size", "align": "right"},
        *({"name": name, "label": name, "field": name, "align": "right"} for name in FORMATS),
        *(
            {"name": f"at{side}", "label": f"{side} px", "field": f"at{side}", "align": "right"}
            for side in SIDES
        ),
    ]
    rows = [_row(t, number, entry) for number, entry in enumerate(found)]
    table = ui.table(columns=columns, rows=rows, row_key="id").classes("card models")
    table.props("flat hide-pagination").props("dense data-test=models")
    table.add_slot("body-cell-title", CELL)
    return table


def _row(t: Words, number: int, entry: Entry) -> dict[str, object]:
    base, sizes = entry.base, sizes_of(entry)
    cards = [" / ".join(_card(t, fit) for fit in fits) for fits in sizes]
    cards = cards if len(cards) > 1 else [cards[0], *[""] * (len(SIDES) - 1)]
    return {
        "id": number,
        "title": base.title,
        "repo": base.repo,
        "arch": base.arch,
        "encoders": base.text_encoders,
        "size": t("{number} B", number=t.number(base.transformer_parameters / 1e9)),
        **{name: t.number(size / GIB) for name, size in entry.weights_bytes.items()},
        **{f"at{side}": card for side, card in zip(SIDES, cards, strict=True)},
    }


def _card(t: Words, fit: Fit) -> str:
    return t("none") if fit.card is None else t("{count} GB", count=fit.card.marketed_gb)
