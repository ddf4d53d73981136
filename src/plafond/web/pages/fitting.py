"""What "Make it fit" would change, before it is changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nicegui import ui

from plafond.web.pages.frame import heading
from plafond.web.words import Words


async def show_fitted(
    t: Words, report: Mapping[str, Any], names: Mapping[str, str], *, quality: bool
) -> str | None:
    """Show what was found and ask.

    Args:
        t: words.
        report: as `plafond fit --json` gives it.
        names: titles of remedies by their ids.
        quality: changes that may change the quality were allowed.

    Returns:
        ``take`` to take the changes, ``quality`` to allow more of them, None for nothing.
    """
    with ui.dialog() as dialog, ui.card().classes("ask wide"):
        if report["fits"]:
            heading(t("This makes it fit"))
            for change in report["changes"]:
                _change(t, change, names)
            if not report["changes"]:
                ui.label(t("It fits already."))
        else:
            heading(t("It cannot be made to fit") if quality else t("Not without touching quality"))
            for line in report["missing"]:
                ui.label(line)
        if report["diff"] and report["fits"]:
            ui.code(report["diff"], language="diff").classes("diff")
        with ui.element("div").classes("line end"):
            ui.button(t("Cancel"), on_click=lambda: dialog.submit(None)).props("flat no-caps")
            if report["fits"]:
                ui.button(t("Change the job"), on_click=lambda: dialog.submit("take")).props(
                    "unelevated no-caps data-test=take-fit"
                )
            elif not quality:
                ui.button(
                    t("Allow changes that may touch quality"), on_click=lambda: dialog.submit("quality")
                ).props("unelevated no-caps")
    answer = await dialog
    dialog.delete()
    return answer if isinstance(answer, str) else None


def _change(t: Words, change: Mapping[str, Any], names: Mapping[str, str]) -> None:
    marks = []
    if change["saves_bytes"] > 0:
        marks.append(t("saves {size}", size=t.size(change["saves_bytes"])))
    if abs(change["time_ratio"] - 1) >= 0.005:
        marks.append(t("steps {ratio}× as long", ratio=t.number(change["time_ratio"], "0.0#")))
    if change["quality"] != "same":
        marks.append(t("quality may change"))
    with ui.element("div").classes("between"):
        ui.label(t(names.get(change["id"], change["id"]))).classes("name")
        ui.label(", ".join(marks)).classes("soft")
