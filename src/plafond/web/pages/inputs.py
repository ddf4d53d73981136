"""The form's fields as they are drawn, each with its label, help and error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nicegui import ui
from nicegui.elements.mixins.value_element import ValueElement

from plafond.web.draft import Draft
from plafond.web.kinds import RESOLUTIONS, Field
from plafond.web.words import Words

Changed = Callable[["Input", Any], None]


class Input:
    """One field on the page.

    Args:
        t: words.
        field: what it is.
        draft: the job.
        changed: told of what was entered.
        prefix: of its key, as ``datasets.0.``.
        folders: names of data sets by their paths.
    """

    def __init__(
        self,
        t: Words,
        field: Field,
        draft: Draft,
        changed: Changed,
        *,
        prefix: str = "",
        folders: Mapping[str, str] | None = None,
    ):
        self.field, self.prefix = field, prefix
        self._t, self._draft, self._changed = t, draft, changed
        self._folders = dict(folders or {})
        self._quiet = False
        self._boxes: dict[int, ui.checkbox] = {}
        self._box = ui.element("div").classes(f"field {field.kind}")
        # most errors never come, and what a job's model lacks need not be drawn: the page opens faster without
        self._element: ui.element | None = None
        self._error: ui.label | None = None
        self.update()

    @property
    def key(self) -> str:
        """The dotted key inside of the process."""
        return self.prefix + self.field.key

    def update(self, *, also_value: bool = True) -> None:
        """Show what the job says now.

        Args:
            also_value: False leaves the value alone that somebody is typing.
        """
        shown = self.field.shown(self._draft, self.prefix)
        self._box.set_visibility(shown)
        if not shown:
            return
        if self._element is None:
            with self._box:
                self._element = self._draw()
            also_value = True
        keys = {self.key, *(self.prefix + key for key in self.field.also)}
        wrong = next((problem for problem in self._draft.problems if problem.key in keys), None)
        self._complain("" if wrong is None else self._t.said(wrong.message))
        if also_value:
            self._quiet = True
            self._show(self._element, self.field.read(self._draft, self.prefix))
            self._quiet = False

    def _complain(self, message: str) -> None:
        if self._error is None:
            if not message:
                return
            with self._box:
                self._error = ui.label().classes("error").props("role=alert")
        self._error.text = message
        self._error.set_visibility(bool(message))
        self._box.classes(add="wrong") if message else self._box.classes(remove="wrong")

    def _show(self, element: ui.element, value: Any) -> None:
        if self.field.kind == "resolutions":
            sides = value if isinstance(value, list) else [value]
            for side, box in self._boxes.items():
                box.value = side in sides
            return
        if isinstance(element, ui.select):
            if self.field.kind == "folder" and isinstance(value, list):
                value = value[0] if value else None
            if value is not None and value not in element.options:
                assert isinstance(element.options, dict)
                element.options = {**element.options, value: str(value)}
                element.update()
        elif self.field.kind == "flag":
            value = bool(value)
        elif value is None:
            value = ""
        if isinstance(element, ValueElement) and element.value != value:
            element.value = value

    def _entered(self, value: Any) -> None:
        if not self._quiet:
            self._changed(self, value)

    def _draw(self) -> ui.element:
        t, field = self._t, self.field
        label, test = t(field.label), f'data-test="{self.key}"'
        match field.kind:
            case "flag":
                element: ui.element = ui.checkbox(label, on_change=lambda event: self._entered(event.value))
                element.props(f"dense {test}")
            case "choice":
                options = {value: t(text) for value, text in field.options.items()}
                element = ui.select(options, label=label, on_change=lambda event: self._entered(event.value))
                element.props(f"outlined dense options-dense {test}")
            case "folder":
                element = ui.select(
                    self._folders,
                    label=label,
                    with_input=True,
                    clearable=field.key != "folder_path",
                    on_change=lambda event: self._entered(event.value),
                ).props(f"outlined dense options-dense {test}")
            case "resolutions":
                element = self._draw_resolutions(label)
            case _:
                element = ui.input(label, on_change=lambda event: self._entered(event.value))
                mode = {"whole": "numeric", "number": "decimal"}.get(field.kind, "text")
                element.props(f"outlined dense debounce=150 inputmode={mode} autocomplete=off {test}")
        if described := field.help(self.prefix):
            # a tooltip of its own for each of a hundred fields would make the page slow to open
            element.props["title"] = t(described)
        return element

    def _draw_resolutions(self, label: str) -> ui.element:
        with ui.element("fieldset").classes("sides") as element:
            ui.html(label, sanitize=False, tag="legend")
            written = self.field.read(self._draft, self.prefix) or []
            for side in sorted({*RESOLUTIONS, *written}):
                box = ui.checkbox(str(side), on_change=lambda event: self._entered(self._sides()))
                box.props(f'dense data-test="{self.key}-{side}"')
                self._boxes[side] = box
        return element

    def _sides(self) -> list[int]:
        return [side for side, box in self._boxes.items() if box.value]
