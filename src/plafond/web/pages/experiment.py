"""The report of an experiment with gradient checkpointing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nicegui import ui

from plafond.web.pages.frame import heading
from plafond.web.words import N_, Words

SETTINGS = {"true": N_("On"), "auto": N_("Auto"), "false": N_("Off")}


def draw_report(t: Words, report: Mapping[str, Any]) -> None:
    """Draw it where this is called."""
    with ui.element("section").classes("card").props("data-test=experiment"):
        heading(t("Gradient checkpointing, tried"))
        for caution in report.get("cautions", ()):
            ui.label(caution).classes("soft")
        columns: list[dict[str, Any]] = [
            {"name": name, "label": t(label), "field": name, "align": "left"}
            for name, label in (
                ("setting", N_("Setting")),
                ("planned", N_("Predicted")),
                ("measured", N_("Measured")),
                ("seconds", N_("Seconds per step")),
                ("note", ""),
            )
        ]
        rows = [_row(t, trial) for trial in report.get("trials", ())]
        ui.table(columns=columns, rows=rows, row_key="setting").props("flat dense hide-bottom")
        best = t(SETTINGS.get(report.get("recommended", ""), report.get("recommended", "")))
        ui.label(t("Recommended: {setting}", setting=best)).classes("name")
        ui.label(str(report.get("why", ""))).classes("soft")


def _row(t: Words, trial: Mapping[str, Any]) -> dict[str, Any]:
    peak, seconds = trial.get("peak_bytes"), trial.get("seconds")
    return {
        "setting": t(SETTINGS.get(trial["setting"], trial["setting"])),
        "planned": t.size(trial["planned_bytes"]),
        "measured": "" if peak is None else t.size(peak),
        "seconds": "" if seconds is None else t.number(seconds, "0.000"),
        "note": trial.get("failure") or ", ".join(trial.get("buckets", ())),
    }
