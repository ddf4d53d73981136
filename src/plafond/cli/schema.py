"""``plafond schema``: the JSON Schema of job files."""

from __future__ import annotations

import json

import typer


def schema() -> None:
    """Print the JSON Schema of job files, for completion and checks in editors."""
    from plafond.job.json_schema import json_schema

    typer.echo(json.dumps(json_schema(), indent=1))
