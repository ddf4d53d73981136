"""The ``plafond`` command: one file per subcommand; each parses, calls and prints."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import plafond
from plafond.cli.calibrate import calibrate
from plafond.cli.check import check
from plafond.cli.demo import demo
from plafond.cli.diff import diff
from plafond.cli.doctor import doctor
from plafond.cli.fit import fit
from plafond.cli.gc_test import gc_test
from plafond.cli.gpus import gpus
from plafond.cli.lang import spoken
from plafond.cli.models import models
from plafond.cli.plan import plan
from plafond.cli.queue import queue
from plafond.cli.schema import schema
from plafond.cli.train import train
from plafond.cli.ui import ui
from plafond.errors import PlafondError

app = typer.Typer(
    name="plafond",
    help="Train LoRAs for diffusion models under a VRAM ceiling.",
    epilog="Exit codes: 0 done; 1 failed while running; 2 bad job or usage; 3 does not fit;"
    " 4 out of memory; 130 interrupted, state saved.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for command in (plan, fit, diff, train, doctor, check, demo, models, gpus, calibrate, schema, ui):
    app.command()(command)
app.command("gc-test")(gc_test)
app.add_typer(queue, name="queue")


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Train LoRAs for diffusion models under a VRAM ceiling."""
    if version:
        typer.echo(plafond.__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line; errors meant for the user are one sentence on standard error."""
    try:
        app()
    except PlafondError as error:
        sys.stderr.write(f"plafond: {spoken()(error.said)}\n")
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(1)
