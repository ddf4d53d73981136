"""The pages that people see, drawn by NiceGUI: one file per view."""

from __future__ import annotations

from fastapi import FastAPI
from nicegui import ui

from plafond.web.pages import dashboard, dataset, datasets, form, job, jobs, models
from plafond.web.pages.frame import ICON
from plafond.web.site import Site


def add_pages(app: FastAPI, site: Site) -> None:
    """Mount all pages into the application; it has to be the last thing that is mounted."""
    for view in (dashboard, jobs, form, job, datasets, dataset, models):
        view.add(site)
    ui.run_with(
        app,
        title="plafond",
        favicon=ICON,
        dark=None,
        tailwind=False,
        show_welcome_message=False,
        reconnect_timeout=30.0,
        binding_refresh_interval=None,
    )
