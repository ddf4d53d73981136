"""The language of what a command prints: ``--lang``, else the environment's."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from plafond.language.said import Speak

_wanted: ContextVar[str | None] = ContextVar("wanted", default=None)


def _remember(context: typer.Context, wanted: str | None) -> str | None:
    """Keep the answer for errors, which are printed when the command has ended; a group's counts for its commands."""
    _wanted.set(None)
    if wanted is None and context.parent is not None:
        wanted = context.parent.params.get("lang")
    if wanted is not None:
        from plafond.language.speech import choose

        _wanted.set(choose(wanted))
    return wanted


Lang = Annotated[
    str | None,
    typer.Option("--lang", metavar="en|fr", help="Language of what is printed.", callback=_remember),
]


def spoken() -> Speak:
    """Puts sentences into the language of this command line."""
    from plafond.language.speech import choose, speaker

    return speaker(choose(_wanted.get()))
