"""``plafond models``: what can be trained."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from plafond.families import families


def models(json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """List the model families, their architecture names and known checkpoints."""
    rows = [(family, base) for family in families() for base in family.base_models]
    if json_:
        listed = [
            {
                "family": family.name,
                "arch": base.arch,
                "title": base.title,
                "repo": base.repo,
                "transformer_parameters": base.transformer_parameters,
                "text_encoders": base.text_encoders,
                "licence": base.licence,
            }
            for family, base in rows
        ]
        typer.echo(json.dumps({"schema": 1, "models": listed}, indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("family", "arch", "model", "name_or_path", "parameters", "text encoders"):
        table.add_column(heading, no_wrap=True)
    for family, base in rows:
        size = f"{base.transformer_parameters / 1e9:.1f} B"
        table.add_row(family.name, base.arch, base.title, base.repo, size, base.text_encoders)
    Console(width=100).print(table)
