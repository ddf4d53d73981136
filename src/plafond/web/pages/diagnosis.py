"""What the doctor says about a run that has failed."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from plafond.jobs.queue import Where
from plafond.jobs.store import Entry
from plafond.web import runs, saving
from plafond.web.asking import AskError, only_answer
from plafond.web.draft import Draft
from plafond.web.pages.forecast import REMEDIES
from plafond.web.pages.frame import heading
from plafond.web.pages.hints import told
from plafond.web.site import Site
from plafond.web.words import Words


async def draw_diagnosis(site: Site, t: Words, entry: Entry) -> None:
    """Ask the doctor, and draw the answer where this is called."""
    with ui.element("section").classes("card diagnosis").props("data-test=diagnosis") as card:
        heading(t("Why it failed"))
        spinner = ui.spinner()
    question = runs.question_about(site.home.run(entry.id), entry, t.language)
    try:
        answer = await only_answer(site.fitter.ask(question), "diagnosis")
    except AskError as error:
        answer = {"report": {"summary": t.said(error.said), "evidence": [], "remedies": []}}
    report = answer["report"]
    spinner.delete()
    with card:
        ui.label(report["summary"]).classes("name").props("data-test=summary")
        if report["evidence"]:
            with ui.element("div").classes("evidence"):
                for line in report["evidence"]:
                    ui.label(f"{t('line {number}', number=line['line'])}: {line['text']}").classes("path")
        for remedy in report["remedies"]:
            _draw_remedy(site, t, entry, remedy)


def _draw_remedy(site: Site, t: Words, entry: Entry, remedy: dict[str, Any]) -> None:
    with ui.element("div").classes("between boxed"):
        with ui.element("div"):
            ui.label(t(REMEDIES[remedy["id"]]) if remedy["id"] in REMEDIES else remedy["why"]).classes("name")
            if remedy["id"] in REMEDIES:
                ui.label(remedy["why"]).classes("soft")
            if remedy["saves_bytes"] is not None:
                ui.label(t("saves {size}", size=t.size(remedy["saves_bytes"]))).classes("soft")
        if remedy["change"]:
            ui.button(t("Change the job"), on_click=lambda: _apply(site, t, entry, remedy["change"])).props(
                "outline no-caps dense"
            )


def _apply(site: Site, t: Words, entry: Entry, change: dict[str, list[Any]]) -> None:
    with told(t):
        draft = Draft(entry.text, entry.suffix, check=saving.checker(site, entry), overrides=entry.overrides)
        for key, (_, new) in change.items():
            draft.set(key, new)
        saving.save(site, draft.text, entry.suffix, Where.of(entry), site.store.job(entry.id))
        ui.navigate.to(f"/jobs/{entry.id}/edit")
