"""New job and edit job: the form, the text that it writes into, and the forecast beside them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from fastapi import Request
from nicegui import events, ui

from plafond.job.text import SUFFIXES
from plafond.jobs import queue
from plafond.jobs.devices import devices
from plafond.jobs.queue import Where
from plafond.jobs.store import ACTIVE, QUEUED, Entry
from plafond.web import saving
from plafond.web.draft import Draft
from plafond.web.fields import MODEL, PANELS, TRAINING, TRIGGER
from plafond.web.kinds import Panel
from plafond.web.pages.editor import Editor
from plafond.web.pages.forecast import Forecast
from plafond.web.pages.frame import frame, heading
from plafond.web.pages.hints import drawn, told
from plafond.web.pages.inputs import Input
from plafond.web.pages.lists import Lists
from plafond.web.pages.placing import Placing
from plafond.web.pages.starting import ask_all_the_same
from plafond.web.site import Site
from plafond.web.starts import base_models, choose, chosen, new_text
from plafond.web.words import N_, Words


def add(site: Site) -> None:
    """The routes ``/jobs/new`` and ``/jobs/{number}/edit``."""

    @ui.page("/jobs/new")
    def new(request: Request) -> None:
        with frame(site, request, N_("New job"), at="/jobs") as t:
            Form(site, t, None)

    @ui.page("/jobs/{number}/edit")
    def edit(request: Request, number: int) -> None:
        with frame(site, request, N_("Edit job"), at="/jobs") as t, drawn(t):
            Form(site, t, site.store.job(number))


class Form:
    """One job on its way into the queue.

    Args:
        site: the page's.
        t: words.
        entry: the job as it is; None for a new one.
    """

    def __init__(self, site: Site, t: Words, entry: Entry | None):
        self.site, self.t, self.entry = site, t, entry
        check = saving.checker(site, entry)
        if entry is None:
            self.draft = Draft(self._start_text(), check=check)
        else:
            self.draft = Draft(entry.text, entry.suffix, check=check, overrides=entry.overrides)
        self._inputs: list[Input] = []
        self._panels: list[tuple[Panel, ui.element]] = []
        self._quiet = self._dirty = False
        self._draw(Where(devices()[0].id) if entry is None else Where.of(entry))
        self.changed(edited=False)

    def _start_text(self) -> str:
        text, names = new_text(), self.site.datasets.names()
        return text.replace("datasets/pictures", f"datasets/{names[0]}") if names else text

    # ------------------------------------------------------------------------------------------------ drawing

    def _draw(self, where: Where) -> None:
        t = self.t
        with ui.element("div").classes("between"):
            heading(t("New job") if self.entry is None else self.entry.name, "h1")
            with ui.element("div").classes("line"):
                self._draw_import()
                ui.button(t("Export"), icon="download", on_click=self._export).props("flat no-caps dense")
                ui.switch(t("Show Advanced"), on_change=self._show_advanced).props("data-test=show-advanced")
                ui.button(t("Save"), on_click=self._save).props("outline no-caps data-test=save")
                ui.button(t("Save and start"), icon="play_arrow", on_click=self._start).props(
                    "unelevated no-caps data-test=start"
                )
        if self.draft.processes > 1:
            names = {index: t("Process {number}", number=index + 1) for index in range(self.draft.processes)}
            ui.toggle(names, value=0, on_change=self._process_chosen).props("no-caps unelevated dense")
        folder = saving.folder_of(self.site, self.entry)
        with ui.element("div").classes("editing") as self._box:
            with ui.element("div").classes("panels"):
                with ui.element("div").classes("panel-grid"):
                    with ui.element("section").classes("card"):
                        self._draw_job(where)
                    for panel in PANELS:
                        if panel is not TRAINING:
                            self._draw_panel(panel)
                self._draw_panel(TRAINING)
                self._lists = Lists(t, self.site, self.draft, folder, self._entered, self.changed)
            self._editor = Editor(t, self.draft, lambda: self.changed(editor=False))
            with ui.element("div").classes("aside"):
                self._forecast = Forecast(
                    self.site,
                    t,
                    self.draft,
                    lambda: self._placing.where,
                    str(folder),
                    self._apply,
                    self._rewrite,
                )

    def _draw_import(self) -> None:
        t = self.t
        upload = ui.upload(auto_upload=True, max_file_size=1_000_000, on_upload=self._import)
        upload.classes("hidden").props(f'accept="{",".join(SUFFIXES)}" data-test=import-file')
        upload.on("rejected", lambda: ui.notify(t("Expected a job file: YAML or JSON."), type="negative"))
        ui.button(t("Import"), icon="upload", on_click=lambda: upload.run_method("pickFiles")).props(
            "flat no-caps dense"
        )

    def _draw_job(self, where: Where) -> None:
        t = self.t
        heading(t("Job"))
        with ui.element("div").classes("fields"):
            self._name = ui.input(t("Training Name"), on_change=self._renamed)
            self._name.props("outlined dense debounce=150 autocomplete=off data-test=name")
            self._input(TRIGGER)
            self._placing = Placing(t, where, lambda: self.changed(editor=False, fields=False))

    def _draw_panel(self, panel: Panel) -> None:
        with ui.element("section").classes("card") as card:
            heading(self.t(panel.title))
            if panel is MODEL:
                titles = {repo: base.title for repo, base in base_models().items()}
                self._arch = ui.select(
                    titles, label=self.t("Model Architecture"), with_input=True, on_change=self._arch_chosen
                ).props("outlined dense options-dense data-test=arch")
            with ui.element("div").classes("fields"):
                for field in panel.fields:
                    self._input(field)
        self._panels.append((panel, card))

    def _input(self, field: Any) -> None:
        self._inputs.append(Input(self.t, field, self.draft, self._entered))

    def _show_advanced(self, event: events.ValueChangeEventArguments[bool | None]) -> None:
        self._editor.show()
        self._box.classes(add="with-text") if event.value else self._box.classes(remove="with-text")

    # ------------------------------------------------------------------------------------------------ editing

    def changed(
        self, *, origin: Input | None = None, editor: bool = True, fields: bool = True, edited: bool = True
    ) -> None:
        """Show everywhere what the job says now.

        Args:
            origin: the field that somebody is typing into.
            editor: False when the text has come from the editor itself.
            fields: False when only the place has changed where the job shall run.
            edited: False when it was only opened.
        """
        if fields:
            self._quiet = True
            if origin is not None or self._name.value != self.draft.name:
                self._name.value = self.draft.name
            self._show_arch()
            self._quiet = False
            for one in self._inputs:
                one.update(also_value=one is not origin)
            self._lists.update(origin)
            for panel, card in self._panels:
                card.set_visibility(panel.shown(self.draft, ""))
        self._editor.update(also_text=editor)
        self._forecast.refresh()
        if edited and not self._dirty:
            self._dirty = True
            ui.run_javascript("window.plafondDirty = true")

    def _entered(self, origin: Input, value: Any) -> None:
        with told(self.t):
            origin.field.write(self.draft, value, origin.prefix)
            self.changed(origin=origin)
            return
        origin.update()

    def _renamed(self, event: events.ValueChangeEventArguments[str | None]) -> None:
        if not self._quiet:
            with told(self.t):
                self.draft.rename((event.value or "").strip())
                self._editor.update()
                self._forecast.refresh()

    def _show_arch(self) -> None:
        repo = chosen(self.draft)
        titles = {repo: base.title for repo, base in base_models().items()}
        if repo is None:
            family = self.draft.family
            name = family.name if family is not None else str(self.draft.value("model.arch"))
            titles[""] = self.t("{family}, own weights", family=name)
        if self._arch.options != titles:
            self._arch.options = titles
            self._arch.update()
        self._arch.value = repo or ""

    def _arch_chosen(self, event: events.ValueChangeEventArguments[str]) -> None:
        if not self._quiet and event.value in base_models():
            with told(self.t):
                choose(self.draft, event.value)
            self.changed()

    def _process_chosen(self, event: events.ValueChangeEventArguments[int | None]) -> None:
        self.draft.process = event.value or 0
        self.changed(edited=False)

    def _apply(self, process: int, values: Mapping[str, Any]) -> None:
        with told(self.t):
            shown, self.draft.process = self.draft.process, process
            try:
                for key, value in values.items():
                    self.draft.set(key, value)
            finally:
                self.draft.process = shown
        self.changed()

    async def _rewrite(self, text: str) -> None:
        self.draft.write(text)
        self.changed()

    async def _import(self, event: events.UploadEventArguments) -> None:
        try:
            text = await event.file.text("utf-8-sig")
        except UnicodeDecodeError:
            ui.notify(self.t("Expected text in UTF-8."), type="negative")
            return
        suffix = PurePath(event.file.name).suffix.lower()
        self.draft.suffix = suffix if suffix in SUFFIXES else self.draft.suffix
        self.draft.write(text)
        problem = self.draft.problem
        if problem is not None and problem.key == "training_folder" and self.entry is None:
            with told(self.t):
                self.draft.set("training_folder", "output")
        self.changed()
        ui.notify(self.t("{name} is imported.", name=event.file.name))

    def _export(self) -> None:
        name = self.draft.name or "job"
        ui.download.content(self.draft.text, f"{PurePath(name).name}{self.draft.suffix}")

    # ------------------------------------------------------------------------------------------------ the queue

    def _saved(self) -> Entry:
        entry = saving.save(self.site, self.draft.text, self.draft.suffix, self._placing.where, self.entry)
        self.entry, self._dirty = entry, False
        ui.run_javascript("window.plafondDirty = false")
        return entry

    def _save(self) -> None:
        with told(self.t):
            entry = self._saved()
            ui.notify(self.t("{name} is saved.", name=entry.name), type="positive")
            if self._forecast.found.verdict == "oom":
                ui.notify(self.t("The forecast says that it does not fit."), type="warning")
            ui.navigate.to(f"/jobs/{entry.id}")

    async def _start(self) -> None:
        with told(self.t):
            if self.draft.job is not None:
                saving.refuse_missing(self.draft.job, saving.folder_of(self.site, self.entry))
            verdict = await self._forecast.settled() if self.draft.job is not None else None
            force = verdict == "oom"
            if force and not await ask_all_the_same(self.t):
                return
            entry = self._saved()
            if entry.state not in (QUEUED, *ACTIVE):
                queue.start(self.site.store, entry, force=force)
            self.site.work()
            ui.navigate.to(f"/jobs/{entry.id}")
