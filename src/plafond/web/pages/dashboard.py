"""The first view: what the machine is doing, what runs, what waits, what is over."""

from __future__ import annotations

from fastapi import Request
from nicegui import run, ui

from plafond.jobs.cards import Wait, waits
from plafond.jobs.progress import seconds_left, step_of
from plafond.jobs.store import ACTIVE, DONE, FAILED, QUEUED, STOPPED, Entry
from plafond.web.machine import DeviceState, Machine, look
from plafond.web.pages.frame import chip, frame, heading
from plafond.web.pages.jobs import waits_for
from plafond.web.site import Site
from plafond.web.words import N_, Words

REFRESH_SECONDS = 2.0
SHOWN = 8
"""Jobs of a kind that are listed here; the others are on the view of all jobs."""


def add(site: Site) -> None:
    """The route ``/``."""

    @ui.page("/")
    async def dashboard(request: Request) -> None:
        with frame(site, request, N_("Dashboard"), at="/") as t:
            heading(t("Dashboard"), "h1").classes("sr")
            state = await run.io_bound(look, site.home.path)
            machine = ui.element("section").classes("devices").props(f'aria-label="{t("Machine")}"')
            jobs = ui.element("div").classes("columns")

            async def draw() -> None:
                nonlocal state
                found = await run.io_bound(_read, site)
                if found is None:
                    return
                state, entries = found
                machine.clear()
                with machine:
                    _machine(t, state)
                jobs.clear()
                with jobs:
                    _jobs(t, entries)

            await draw()
            ui.timer(REFRESH_SECONDS, draw, immediate=False)


def _read(site: Site) -> tuple[Machine, list[Entry]]:
    return look(site.home.path), site.store.jobs()


def _machine(t: Words, state: Machine) -> None:
    for device in state.devices:
        with ui.element("article").classes("card device"):
            with ui.element("div").classes("between"):
                heading(device.name if device.id != "cpu" else t("This computer"), "h3")
                ui.label(_health(t, device)).classes("soft")
            share = device.memory_used / device.memory_total if device.memory_total else 0.0
            meter(share)
            name = t("main memory") if device.id == "cpu" else t("memory")
            used, total = t.size(device.memory_used), t.size(device.memory_total)
            ui.label(t("{used} of {total} {name} in use", used=used, total=total, name=name)).classes("soft")
            if device.id == "cpu":
                free = t.size(state.disk_free)
                ui.label(t("{free} free on the disk", free=free)).classes("soft")


def _health(t: Words, device: DeviceState) -> str:
    parts = [] if device.use is None else [t.percent(device.use / 100)]
    if device.temperature is not None:
        parts.append(f"{device.temperature} °C")
    if device.watts is not None:
        parts.append(f"{device.watts:.0f} W")
    return " · ".join(parts)


def meter(share: float, label: str = "") -> ui.element:
    """A thin bar that is filled to a share of 1."""
    value = round(100 * min(1.0, max(0.0, share)))
    bar = ui.element("div").classes("meter")
    bar.props(f"role=progressbar aria-valuenow={value} aria-valuemin=0 aria-valuemax=100")
    bar.props["aria-label"] = label
    with bar:
        ui.element("i").style(f"width: {value}%")
    return bar


def _jobs(t: Words, entries: list[Entry]) -> None:
    if not entries:
        with ui.element("section").classes("card empty"):
            heading(t("Nothing has been trained here yet"))
            ui.label(
                t("Put pictures into a data set, then make a job; the forecast shows what fits your card.")
            )
            with ui.element("div").classes("line"):
                ui.button(t("New data set"), on_click=lambda: ui.navigate.to("/datasets")).props(
                    "outline no-caps"
                )
                ui.button(t("New job"), on_click=lambda: ui.navigate.to("/jobs/new")).props(
                    "unelevated no-caps"
                )
        return
    kinds = (
        (t("Running"), ACTIVE, t("Nothing is running.")),
        (t("Waiting"), (QUEUED,), t("Nothing is waiting.")),
        (t("Over"), (DONE, FAILED, STOPPED), t("Nothing is over yet.")),
    )
    waiting = waits(entries)
    for title, states, nothing in kinds:
        found = [entry for entry in entries if entry.state in states]
        with ui.element("section").classes("card"):
            heading(f"{title} · {len(found)}" if found else title)
            if not found:
                ui.label(nothing).classes("soft")
            for entry in found[:SHOWN]:
                _job(t, entry, waiting.get(entry.id))
            if len(found) > SHOWN:
                ui.link(t("All {count}", count=len(found)), "/jobs")


def _job(t: Words, entry: Entry, wait: Wait | None) -> None:
    with ui.link(target=f"/jobs/{entry.id}").classes("job"):
        with ui.element("div").classes("between"):
            ui.label(entry.name).classes("name")
            chip(t, entry.state)
        if entry.state in ACTIVE and entry.steps:
            step = step_of(entry)
            meter(step / entry.steps, entry.name)
            left = seconds_left(entry)
            rest = "" if left is None else t("{time} left", time=t.duration(left))
            progress = t("step {step} of {steps}", step=step, steps=entry.steps)
            ui.label(" · ".join(part for part in (progress, rest, entry.device) if part)).classes("soft")
        elif wait is not None:
            ui.label(waits_for(t, wait)).classes("soft")
        elif entry.ended is not None:
            ui.label(t.ago(entry.ended)).classes("soft")
        else:
            ui.label(" · ".join(part for part in (entry.device, entry.gpu or entry.vram) if part)).classes(
                "soft"
            )
