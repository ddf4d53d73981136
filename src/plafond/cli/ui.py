"""``plafond ui``: the page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from plafond.cli.lang import Lang, spoken
from plafond.language.said import N_, Said


def ui(
    host: Annotated[
        str, typer.Option(help="Address to listen at; any but this machine's own asks for a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8675,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="PLAFOND_TOKEN",
            help="What has to be known to use the page; made up and printed when it is needed and not given.",
        ),
    ] = None,
    home: Annotated[
        Path | None,
        typer.Option(help="Folder of jobs, data sets and runs; ~/plafond or $PLAFOND_HOME when not given."),
    ] = None,
    allow: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FOLDER", help="Let jobs read pictures from here, too, and write runs; repeatable."
        ),
    ] = None,
    lang: Lang = None,
) -> None:
    """Open the page: jobs, forecasts, the queue, previews and data sets in a browser.

    Jobs run on when it is closed.
    """
    from plafond.jobs.home import Home
    from plafond.web.serve import access_for, serve

    access, speak = access_for(host, port, token), spoken()

    def ready(address: str) -> None:
        typer.echo(speak(Said(N_("plafond is at {address}"), {"address": address})))
        if access.token is not None and token is None:
            typer.echo(speak(Said(N_("token: {token}"), {"token": access.token})))
        typer.echo(speak(Said(N_("Ctrl-C closes the page; jobs run on."))))

    folders = tuple(folder.expanduser().resolve() for folder in allow or ())
    serve(Home(home), access, allowed=folders, ready=ready)
