"""On what a job runs, and against which memory it is planned."""

from __future__ import annotations

from collections.abc import Callable

from nicegui import ui

from plafond.errors import UsageError
from plafond.jobs.devices import devices
from plafond.jobs.queue import Where
from plafond.memory.gpus import ceiling_for, gpus
from plafond.web.words import Words


class Placing:
    """The fields of device, card and ceiling.

    Args:
        t: words.
        where: what they show first.
        changed: told when they say something else.
    """

    def __init__(self, t: Words, where: Where, changed: Callable[[], None]):
        self._t, self.where, self._changed = t, where, changed
        known = {device.id: _title(t, device.id, device.name) for device in devices()}
        known.setdefault(where.device, where.device)
        self._device = ui.select(known, label=t("GPU ID"), value=where.device, on_change=self._read)
        self._device.props("outlined dense options-dense data-test=device")
        cards = {
            "": t("of this machine"),
            **{gpu.name: f"{gpu.name} · {gpu.marketed_gb} GB" for gpu in gpus()},
        }
        if where.gpu is not None:
            cards.setdefault(where.gpu, where.gpu)
        self._card = ui.select(
            cards, label=t("Memory of the card"), value=where.gpu or "", with_input=True, on_change=self._read
        ).props("outlined dense options-dense data-test=card")
        with ui.element("div").classes("field"):
            self._vram = ui.input(t("Or a ceiling, as 24GB"), value=where.vram or "", on_change=self._read)
            self._vram.props("outlined dense debounce=300 autocomplete=off data-test=vram")
            self._error = ui.label().classes("error").props("role=alert")
        self._error.set_visibility(False)

    def _read(self) -> None:
        vram, gpu = (self._vram.value or "").strip() or None, self._card.value or None
        try:
            if vram or gpu:
                ceiling_for(vram, gpu)
        except UsageError as error:
            self._error.text = self._t.said(error.said)
            self._error.set_visibility(True)
            return
        self._error.set_visibility(False)
        self.where = Where(self._device.value, vram, gpu)
        self._changed()


def _title(t: Words, device: str, name: str) -> str:
    return t("CPU (a virtual GPU)") if device == "cpu" else f"{device} · {name}"
