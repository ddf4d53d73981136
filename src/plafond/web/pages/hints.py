"""Telling people that something did not work, in the sentence that the error brings along."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nicegui import ui

from plafond.errors import PlafondError
from plafond.job.editing import EditError
from plafond.web.words import Words


@contextmanager
def told(t: Words) -> Iterator[None]:
    """Show errors that are meant for people; what is done inside of the block ends with them."""
    try:
        yield
    except (PlafondError, EditError) as error:
        ui.notify(
            t.said(error.said), type="negative", multi_line=True, timeout=10_000, close_button=t("Close")
        )


@contextmanager
def drawn(t: Words) -> Iterator[None]:
    """Draw such an error where the view would have been: of a job that is gone, for instance."""
    try:
        yield
    except (PlafondError, EditError) as error:
        with ui.element("section").classes("card empty"):
            ui.label(t.said(error.said)).classes("error message").props("role=alert data-test=refusal")
            ui.link(t("Dashboard"), "/")
