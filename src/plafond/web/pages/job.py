"""One job: what it does, its curves, previews, files and log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

from fastapi import Request
from nicegui import background_tasks, run, ui

from plafond.jobs import queue
from plafond.jobs.cards import waits
from plafond.jobs.progress import seconds_left, step_of
from plafond.jobs.queue import Where
from plafond.jobs.store import ACTIVE, DONE, FAILED, GC_TEST, IDLE, QUEUED, STOPPING, Entry
from plafond.web import runs
from plafond.web.ceilings import fixed_ceiling
from plafond.web.curves import Curves, recovered_steps
from plafond.web.draft import Draft
from plafond.web.pages.charts import LossChart, MemoryChart
from plafond.web.pages.diagnosis import draw_diagnosis
from plafond.web.pages.experiment import draw_report
from plafond.web.pages.frame import chip, frame, heading
from plafond.web.pages.hints import drawn, told
from plafond.web.pages.jobs import confirm_delete, waits_for
from plafond.web.pages.previews import Previews
from plafond.web.pages.starting import start
from plafond.web.site import Site
from plafond.web.words import N_, Words

REFRESH_SECONDS = 1.5

LONG_MESSAGE = 4
"""Lines of a message that is not shown at once."""


def add(site: Site) -> None:
    """The route ``/jobs/{number}``."""

    @ui.page("/jobs/{number}")
    async def job(request: Request, number: int) -> None:
        with frame(site, request, N_("Job"), at="/jobs") as t, drawn(t):
            await View(site, t, site.store.job(number)).draw()


class View:
    """A job as it goes on.

    Args:
        site: the page's.
        t: words.
        entry: the job.
    """

    def __init__(self, site: Site, t: Words, entry: Entry):
        self.site, self.t, self.entry = site, t, entry
        self._curves = Curves(runs.folder_of(entry))
        self._log_offset = 0
        self._files: list[runs.Listed] | None = None
        self._drawn_state = ""

    # ------------------------------------------------------------------------------------------------ drawing

    async def draw(self) -> None:
        """Draw everything, and keep it up to date."""
        entry = self.entry
        ui.page_title(f"{entry.name} · plafond")
        with ui.element("div").classes("between"):
            with ui.element("div").classes("line"):
                heading(entry.name, "h1")
                self._chip = ui.element("span")
            self._buttons = ui.element("div").classes("line")
        with ui.element("section").classes("card progress"):
            self._bar = ui.element("div").classes("meter").props("role=progressbar")
            with self._bar:
                self._filled = ui.element("i")
            with ui.element("div").classes("between"):
                self._progress = ui.label().props("data-test=progress")
                self._doing = ui.label().classes("soft clip")
        self._notes = ui.element("div").classes("lists")
        if entry.kind == GC_TEST:
            self._log_box = self._draw_log()
        else:
            self._draw_tabs()
        await self._update()
        ui.timer(REFRESH_SECONDS, self._update, immediate=False)

    def _draw_tabs(self) -> None:
        t = self.t
        with ui.tabs().props("no-caps align=left inline-label") as tabs:
            overview = ui.tab("overview", label=t("Overview"), icon="show_chart")
            ui.tab("previews", label=t("Previews"), icon="image").props("data-test=tab-previews")
            ui.tab("files", label=t("Files"), icon="folder_open").props("data-test=tab-files")
            ui.tab("log", label=t("Log"), icon="notes").props("data-test=tab-log")
        with ui.tab_panels(tabs, value=overview, animated=False).props("keep-alive").classes("tab-panels"):
            with ui.tab_panel("overview"), ui.element("div").classes("columns wide"):
                with ui.element("section").classes("card"):
                    heading(t("Loss"))
                    self._loss = LossChart(t, self._curves)
                with ui.element("section").classes("card"):
                    heading(t("Memory: measured over predicted"))
                    self._memory = MemoryChart(t, self._curves, fixed_ceiling(Where.of(self.entry)))
            with ui.tab_panel("previews"), ui.element("section").classes("card"):
                self._previews = Previews(t, self.entry.id, self._prompts())
            with ui.tab_panel("files"), ui.element("section").classes("card"):
                self._listing = ui.element("div").classes("files").props("data-test=files")
                ui.label(self.entry.run_folder).classes("path")
            with ui.tab_panel("log"):
                self._log_box = self._draw_log()

    def _draw_log(self) -> ui.log:
        with ui.element("section").classes("card"):
            heading(self.t("Log"))
            return ui.log(max_lines=1000).classes("log").props("data-test=log")

    def _prompts(self) -> list[str]:
        job = Draft(self.entry.text, self.entry.suffix, overrides=self.entry.overrides).job
        return [item.prompt for item in job.processes[0].sample.samples] if job is not None else []

    # ------------------------------------------------------------------------------------------------ what is new

    async def _update(self) -> None:
        with told(self.t):
            self.entry = self.site.store.job(self.entry.id)
        entry = self.entry
        if entry.state != self._drawn_state:
            self._drawn_state = entry.state
            self._draw_state()
        self._update_progress()
        self._update_log()
        if entry.kind == GC_TEST:
            return
        found = await run.io_bound(self._look)
        if found is None:
            return
        changed, recovered, samples, files = found
        if changed or self._files is None:
            self._loss.update()
            self._memory.update(recovered)
        self._previews.update(samples)
        if files != self._files:
            self._files = files
            self._draw_files(files)

    def _look(self) -> tuple[bool, list[int], list[runs.Sample], list[runs.Listed]]:
        """What the run has written; in a thread, since it may be a lot."""
        entry = self.entry
        changed = self._curves.read()
        log = runs.whole_log(self.site.home.run(entry.id), entry) if changed or self._files is None else ""
        return changed, recovered_steps(log), runs.samples(entry), runs.files(entry)

    def _draw_state(self) -> None:
        t, entry = self.t, self.entry
        self._chip.clear()
        with self._chip:
            chip(t, entry.state)
        self._buttons.clear()
        with self._buttons:
            self._draw_buttons()
        self._notes.clear()
        with self._notes:
            if entry.message and entry.state == FAILED:
                self._draw_message(entry.message)
            if entry.state == FAILED:
                background_tasks.create(self._diagnose())
            self._draw_experiments()

    def _draw_message(self, message: str) -> None:
        if message.count("\n") < LONG_MESSAGE:
            ui.label(message).classes("card error message")
            return
        with ui.expansion(self.t("What the run said")).classes("card fold"):
            ui.label(message).classes("message")

    async def _diagnose(self) -> None:
        with self._notes:
            await draw_diagnosis(self.site, self.t, self.entry)

    def _draw_experiments(self) -> None:
        entry = self.entry
        own = runs.report(self.site.home.run(entry.id)) if entry.kind == GC_TEST else None
        if own is not None and "trials" in own:
            draw_report(self.t, own)
        if entry.parent is not None:
            ui.link(self.t("The job that this was tried for"), f"/jobs/{entry.parent}")
        for other in self.site.store.jobs():
            if other.parent == entry.id:
                with ui.link(target=f"/jobs/{other.id}").classes("job"), ui.element("div").classes("between"):
                    ui.label(self.t("Checkpointing test")).classes("name")
                    chip(self.t, other.state)

    def _draw_buttons(self) -> None:
        t, entry = self.t, self.entry
        idle = entry.state in IDLE
        if idle and not (entry.state == DONE and step_of(entry) >= entry.steps):
            label = t("Resume") if entry.attempts and entry.kind != GC_TEST else t("Start")
            self._button(label, "play_arrow", self._start, "unelevated", "start")
        if entry.state in (QUEUED, *ACTIVE) and entry.state != STOPPING:
            self._button(t("Stop"), "stop", self._stop, "unelevated", "stop")
        if entry.state == STOPPING:
            self._button(t("Stop at once"), "dangerous", self._kill, "outline", "kill")
        if entry.kind != GC_TEST:
            if entry.state != STOPPING:
                self._button(t("Edit"), "edit", self._edit, "flat", "edit")
            self._button(t("Clone"), "content_copy", self._clone, "flat", "clone")
            self._button(t("Test checkpointing"), "science", self._experiment, "flat", "gc-test")
        if idle and entry.attempts and entry.kind != GC_TEST:
            self._button(t("Start anew"), "restart_alt", self._start_anew, "flat", "fresh")
        if idle:
            self._button(t("Delete"), "delete_outline", self._delete, "flat", "delete")

    def _button(self, label: str, icon: str, act: Callable[[], Any], look: str, test: str) -> None:
        async def told_act() -> None:
            with told(self.t):
                answer = act()
                if isinstance(answer, Awaitable):
                    await answer

        ui.button(label, icon=icon, on_click=told_act).props(
            f"{look} no-caps dense data-test={test}"
        ).classes("act")

    def _update_progress(self) -> None:
        t, entry = self.t, self.entry
        step = step_of(entry)
        share = step / entry.steps if entry.steps else 0.0
        self._filled.style(f"width: {100 * min(1.0, share):.1f}%")
        self._bar.props["aria-valuenow"] = round(100 * share)
        self._bar.props["aria-label"] = entry.name
        parts = [t("step {step} of {steps}", step=step, steps=entry.steps)] if entry.steps else []
        if entry.state in ACTIVE and (left := seconds_left(entry)) is not None and step:
            parts.append(t("{time} left", time=t.duration(left)))
        if entry.started and entry.ended and entry.state in IDLE:
            parts.append(t("took {time}", time=t.duration(entry.ended - entry.started)))
        parts += [part for part in (entry.device, entry.gpu, entry.vram) if part]
        wait = waits(self.site.store.jobs()).get(entry.id) if entry.state == QUEUED else None
        parts += [] if wait is None else [waits_for(t, wait)]
        self._progress.text = " · ".join(parts)

    def _update_log(self) -> None:
        text, self._log_offset = runs.log(
            self.site.home.run(self.entry.id), self.entry, offset=self._log_offset
        )
        lines = [line for line in text.splitlines() if line.strip()]
        for line in lines:
            self._log_box.push(line)
        if lines:
            self._doing.text = lines[-1]
        self._doing.set_visibility(self.entry.state in ACTIVE)

    def _draw_files(self, files: list[runs.Listed]) -> None:
        t = self.t
        self._listing.clear()
        with self._listing:
            if not files:
                ui.label(t("The run has not written anything yet.")).classes("soft")
            for file in files:
                with ui.element("div").classes("between file"):
                    url = f"/api/jobs/{self.entry.id}/files/{quote(file.name)}"
                    link = ui.link(file.name, url).props("download")
                    link.props["data-test"] = f"file-{file.name}"
                    ui.label(t.size(file.bytes)).classes("soft")

    # ------------------------------------------------------------------------------------------------ buttons

    async def _start(self) -> None:
        if self.entry.kind == GC_TEST:
            queue.start(self.site.store, self.entry)
            self.site.work()
        elif not await start(self.site, self.t, self.entry):
            return
        await self._update()

    async def _start_anew(self) -> None:
        if await start(self.site, self.t, self.entry, fresh=True):
            ui.navigate.to(f"/jobs/{self.entry.id}")

    async def _stop(self) -> None:
        queue.stop(self.site.store, self.site.store.job(self.entry.id))
        await self._update()

    async def _kill(self) -> None:
        queue.kill(self.site.store, self.site.store.job(self.entry.id))
        await self._update()

    def _edit(self) -> None:
        ui.navigate.to(f"/jobs/{self.entry.id}/edit")

    def _clone(self) -> None:
        copy = queue.clone(self.site.store, self.entry)
        ui.navigate.to(f"/jobs/{copy.id}/edit")

    def _experiment(self) -> None:
        entry = queue.gc_test(self.site.store, self.entry)
        self.site.work()
        ui.navigate.to(f"/jobs/{entry.id}")

    async def _delete(self) -> None:
        if (files := await confirm_delete(self.t, self.entry)) is not None:
            queue.forget(self.site.store, self.entry, files=files)
            ui.navigate.to("/jobs")
