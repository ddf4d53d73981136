"""All data sets."""

from __future__ import annotations

from urllib.parse import quote

from fastapi import Request
from nicegui import run, ui

from plafond.web.pages.frame import counted, frame, heading
from plafond.web.pages.hints import told
from plafond.web.site import Site
from plafond.web.words import N_, Words


def add(site: Site) -> None:
    """The route ``/datasets``."""

    @ui.page("/datasets")
    async def datasets(request: Request) -> None:
        found = await run.io_bound(_found, site) or []
        with frame(site, request, N_("Data sets"), at="/datasets") as t:
            heading(t("Data sets"), "h1")
            _draw_new(site, t)
            if not found:
                ui.label(t("There is no data set yet; the first one needs a name.")).classes("soft")
            with ui.element("div").classes("covers"):
                for name, count, cover in found:
                    with ui.link(target=f"/datasets/{quote(name)}").classes("card cover"):
                        if cover is not None:
                            source = f"/api/datasets/{quote(name)}/thumbnails/{quote(cover)}"
                            ui.html(f'<img src="{source}" alt="" loading="lazy">', sanitize=False)
                        else:
                            ui.icon("image").classes("nothing")
                        ui.label(name).classes("name")
                        ui.label(counted(t, count)).classes("soft")


def _found(site: Site) -> list[tuple[str, int, str | None]]:
    datasets = site.datasets
    return [(name, datasets.count(name), datasets.first(name)) for name in datasets.names()]


def _draw_new(site: Site, t: Words) -> None:
    def create() -> None:
        with told(t):
            folder = site.datasets.create(name.value or "")
            ui.navigate.to(f"/datasets/{quote(folder.name)}")

    with ui.element("section").classes("card"), ui.element("div").classes("line"):
        name = ui.input(t("Name of a new data set")).props(
            "outlined dense autocomplete=off data-test=dataset-name"
        )
        name.on("keydown.enter", create)
        ui.button(t("Create"), icon="add", on_click=create).props(
            "unelevated no-caps data-test=create-dataset"
        )
