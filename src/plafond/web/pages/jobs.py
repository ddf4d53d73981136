"""All jobs: what runs, the queue in its order, and what is over."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from nicegui import run, ui
from nicegui.events import GenericEventArguments

from plafond.errors import DoesNotFitError
from plafond.jobs import queue
from plafond.jobs.cards import Wait, waits
from plafond.jobs.progress import step_of
from plafond.jobs.store import Entry
from plafond.web.pages.frame import STATES, frame, heading
from plafond.web.pages.hints import told
from plafond.web.pages.starting import start
from plafond.web.site import Site
from plafond.web.words import N_, Words

REFRESH_SECONDS = 3.0
ROWS = 25
DOES_NOT_FIT = DoesNotFitError.exit_code

CELL = """
<q-td :props="props">
  <a :href="'/jobs/' + props.row.id" class="name">{{ props.row.name }}</a>
  <div v-if="props.row.message" class="soft clip">{{ props.row.message }}</div>
</q-td>
"""
STATE = """
<q-td :props="props">
  <span :class="'chip ' + props.row.state">{{ props.row.said }}</span>
</q-td>
"""


def _actions(t: Words) -> str:
    def button(action: str, icon: str, label: str, states: str) -> str:
        return (
            f'<q-btn v-if="[{states}].includes(props.row.state)" flat round dense icon="{icon}"'
            f' aria-label="{label}" title="{label}" data-test="{action}"'
            f" @click=\"() => $parent.$emit('act', '{action}', props.row.id)\" />"
        )

    idle = "'draft','stopped','failed','done'"
    buttons = [
        button("front", "vertical_align_top", t("To the front"), "'queued'"),
        button("start", "play_arrow", t("Start"), "'draft','stopped','failed'"),
        button("stop", "stop", t("Stop"), "'queued','running'"),
        button("clone", "content_copy", t("Clone"), f"{idle},'queued','running'"),
        button("delete", "delete_outline", t("Delete"), idle),
    ]
    return f'<q-td :props="props" class="actions">{"".join(buttons)}</q-td>'


def add(site: Site) -> None:
    """The route ``/jobs``."""

    @ui.page("/jobs")
    async def jobs(request: Request) -> None:
        rows = await run.io_bound(_rows, site)
        with frame(site, request, N_("Jobs"), at="/jobs") as t:
            with ui.element("div").classes("between"):
                heading(t("Jobs"), "h1")
                search = ui.input(placeholder=t("Search")).props(
                    f'outlined dense clearable debounce=200 aria-label="{t("Search")}"'
                )
            table = _table(t, rows or [])
            search.bind_value(table, "filter")

            async def draw() -> None:
                found = await run.io_bound(_rows, site)
                if found is not None and (new := [_said(t, row) for row in found]) != table.rows:
                    table.rows = new

            async def act(event: GenericEventArguments) -> None:
                action, number = event.args
                with told(t):
                    if action == "delete":
                        await _ask_delete(site, t, int(number))
                    elif action == "start":
                        await start(site, t, site.store.job(int(number)))
                    else:
                        _act(site, t, action, int(number))
                await draw()

            table.on("act", act)
            ui.timer(REFRESH_SECONDS, draw, immediate=False)


def _table(t: Words, rows: list[dict[str, Any]]) -> ui.table:
    columns: list[dict[str, Any]] = [
        {"name": "id", "label": "#", "field": "id", "sortable": True, "align": "left"},
        {"name": "name", "label": t("Job"), "field": "name", "sortable": True, "align": "left"},
        {"name": "state", "label": t("State"), "field": "said", "sortable": True, "align": "left"},
        {"name": "progress", "label": t("Steps"), "field": "progress", "align": "right"},
        {"name": "place", "label": t("Device"), "field": "place", "align": "left"},
        {"name": "actions", "label": "", "field": "id"},
    ]
    table = ui.table(
        columns=columns, rows=[_said(t, row) for row in rows], row_key="id", pagination=ROWS
    ).classes("card jobs")
    table.props(f'flat no-data-label="{t("There is no job yet.")}" rows-per-page-label="{t("Rows")}"')
    table.add_slot("body-cell-name", CELL)
    table.add_slot("body-cell-state", STATE)
    table.add_slot("body-cell-actions", _actions(t))
    return table


def _rows(site: Site) -> list[dict[str, Any]]:
    entries = site.store.jobs()
    waiting = waits(entries)
    # a row goes to the browser, so it holds what JSON holds
    return [_row(entry) | {"waits": [*waiting.get(entry.id, ())]} for entry in entries]


def _row(entry: Entry) -> dict[str, Any]:
    step = step_of(entry) if entry.attempts else 0
    return {
        "id": entry.id,
        "name": entry.name,
        "state": entry.state,
        "progress": f"{step} / {entry.steps}" if entry.steps else "",
        "place": " · ".join(part for part in (entry.device, entry.gpu or entry.vram) if part),
        "message": entry.message.splitlines()[0] if entry.message else "",
        "code": entry.code,
    }


def _said(t: Words, row: dict[str, Any]) -> dict[str, Any]:
    message = t("The plan said that it does not fit.") if row["code"] == DOES_NOT_FIT else row["message"]
    message = waits_for(t, Wait(*row["waits"])) if row["waits"] else message
    return {**row, "said": t(STATES[row["state"]]), "message": message}


def waits_for(t: Words, wait: Wait) -> str:
    """What a job waits for, in words."""
    if wait.bytes is None:
        return t("waits until {device} is free", device=wait.device)
    return t("waits for {size} on {device}", size=t.size(wait.bytes), device=wait.device)


def _act(site: Site, t: Words, action: str, number: int) -> None:
    entry = site.store.job(number)
    match action:
        case "front":
            queue.to_front(site.store, entry)
        case "stop":
            queue.stop(site.store, entry)
            ui.notify(t("{name} stops after its step, and saves.", name=entry.name))
        case "clone":
            copy = queue.clone(site.store, entry)
            ui.navigate.to(f"/jobs/{copy.id}/edit")


async def _ask_delete(site: Site, t: Words, number: int) -> None:
    entry = site.store.job(number)
    if (files := await confirm_delete(t, entry)) is not None:
        queue.forget(site.store, entry, files=files)
        ui.notify(t("{name} is deleted.", name=entry.name))


async def confirm_delete(t: Words, entry: Entry) -> bool | None:
    """Ask before a job is deleted: None for no, else whether its run folder goes, too."""
    with ui.dialog() as dialog, ui.card().classes("ask"):
        heading(t("Delete {name}?", name=entry.name))
        ui.label(t("The job leaves the list. Its run folder stays unless you say so:"))
        ui.label(entry.run_folder).classes("path")
        files = ui.checkbox(t("Delete the run folder with its weights and previews, too"))
        with ui.element("div").classes("line end"):
            ui.button(t("Cancel"), on_click=lambda: dialog.submit(None)).props("flat no-caps")
            ui.button(t("Delete"), on_click=lambda: dialog.submit(files.value)).props(
                "unelevated no-caps color=negative data-test=really-delete"
            )
    answer = await dialog
    dialog.delete()
    return answer if isinstance(answer, bool) else None
