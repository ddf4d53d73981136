"""Plan a LoRA on every published model, and write what `plafond models` and docs/models.md show.

The table comes with plafond because the plans take minutes. A test plans one row of it anew.

    python bench/models.py
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import plafond
from plafond.memory.gpus import GIB
from plafond.plan.models import (
    CLIP,
    FORMATS,
    SIDES,
    TABLE,
    Entry,
    entries,
    identity,
    planned,
    published,
    sizes_of,
)

FILE = Path(plafond.__file__).parent / "assets" / TABLE
PAGE = Path(__file__).resolve().parents[1] / "docs" / "models.md"
START = "<!-- written by bench/models.py -->\n"


def main() -> None:
    """Write the table, each row as it is found, and the page."""
    rows: dict[str, object] = {}
    for family, base in published():
        name, started = identity(family, base), time.monotonic()
        if name not in rows:
            rows[name] = planned(family, base)
            FILE.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
            seconds = time.monotonic() - started
            print(f"{base.arch:26} {base.title:28} {seconds:6.1f} s", file=sys.stderr, flush=True)
    said = PAGE.read_text(encoding="utf-8").partition(START)[0]
    PAGE.write_text(said + START + "\n" + "\n".join(_table()) + "\n", encoding="utf-8")


def _table() -> Iterator[str]:
    headings = ("arch", "model", "parameters", *(f"{name}, GiB" for name in FORMATS), *map(str, SIDES))
    yield f"| {' | '.join(headings)} |"
    yield "|---|---" + "|---:" * (len(headings) - 2) + "|"
    for entry in entries(published()):
        base = entry.base
        weights = [f"{size / GIB:.1f}" for size in entry.weights_bytes.values()]
        cells = [f"`{base.arch}`", base.title, f"{base.transformer_parameters / 1e9:.1f} B", *weights]
        yield f"| {' | '.join([*cells, *_cards(entry)])} |"


def _cards(entry: Entry) -> list[str]:
    """The smallest card for each size, one for each format of weights."""
    found = [
        " / ".join("none" if fit.card is None else f"{fit.card.marketed_gb} GB" for fit in fits)
        for fits in sizes_of(entry)
    ]
    return found if len(found) > 1 else [f"{found[0]} ({CLIP.frames} frames)", *[""] * (len(SIDES) - 1)]


if __name__ == "__main__":
    main()
