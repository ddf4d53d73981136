"""Queueing a job, with a word of warning where the forecast says that it does not fit."""

from __future__ import annotations

from nicegui import ui

from plafond.jobs import queue
from plafond.jobs.queue import Where
from plafond.jobs.store import Entry
from plafond.web import saving
from plafond.web.asking import AskError, Question
from plafond.web.draft import Draft
from plafond.web.pages.frame import heading
from plafond.web.site import Site
from plafond.web.words import Words


async def start(site: Site, t: Words, entry: Entry, *, fresh: bool = False) -> bool:
    """Queue a job that is there already; False when somebody thought better of it.

    Raises:
        PlafondError: it cannot be run as written.
    """
    draft = Draft(entry.text, entry.suffix, check=saving.checker(site, entry), overrides=entry.overrides)
    force = False
    if draft.job is not None:
        saving.refuse_missing(draft.job, saving.folder_of(site, entry))
        force = await _does_not_fit(site, t, entry)
        if force and not await ask_all_the_same(t):
            return False
    queue.start(site.store, entry, force=force, fresh=fresh)
    site.work()
    return True


async def _does_not_fit(site: Site, t: Words, entry: Entry) -> bool:
    question = Question(
        what="forecast",
        text=entry.text,
        suffix=entry.suffix,
        folder=entry.folder,
        where=Where.of(entry),
        overrides=tuple(entry.overrides),
        remedies=False,
        language=t.language,
    )
    verdicts = []
    async for answer in site.planner.ask(question):
        if answer["kind"] == "plan" and answer["limited"]:
            verdicts.append(answer["plan"]["verdict"])
        elif answer["kind"] == "error":
            raise AskError(answer)
    return "oom" in verdicts


async def ask_all_the_same(t: Words) -> bool:
    """Ask whether a job shall be queued that does not fit."""
    with ui.dialog() as dialog, ui.card().classes("ask"):
        heading(t("The forecast says that it does not fit"))
        ui.label(
            t(
                "It would run out of memory. Started all the same, it recovers where it can and stops with its state"
                " saved where it cannot."
            )
        )
        with ui.element("div").classes("line end"):
            ui.button(t("Back"), on_click=lambda: dialog.submit(False)).props("flat no-caps")
            ui.button(t("Start all the same"), on_click=lambda: dialog.submit(True)).props(
                "unelevated no-caps color=warning data-test=force"
            )
    answer = await dialog
    dialog.delete()
    return bool(answer)
