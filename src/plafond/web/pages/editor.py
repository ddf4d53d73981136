"""Show Advanced: the job's text itself, with its error at the line where it is."""

from __future__ import annotations

from collections.abc import Callable

from nicegui import ui

from plafond.web.draft import Draft
from plafond.web.pages.frame import heading
from plafond.web.words import Words


class Editor:
    """The editor of a job's text.

    Args:
        t: words.
        draft: the job.
        changed: told after the job has taken another text.
    """

    def __init__(self, t: Words, draft: Draft, changed: Callable[[], None]):
        self._t, self._draft, self._changed = t, draft, changed
        self._quiet = False
        self._box = ui.element("section").classes("card advanced").props(f'aria-label="{t("Job file")}"')
        self._editor: ui.codemirror | None = None
        self._timer: ui.timer | None = None

    def show(self) -> None:
        """Draw it when it is wanted for the first time: the browser takes a while to load it."""
        if self._editor is not None:
            return
        with self._box:
            heading(self._t("Job file"))
            self._message = ui.label().classes("error").props("role=alert data-test=text-error")
            self._editor = ui.codemirror(self._draft.text, indent="  ", on_change=self._typed)
            self._editor.classes("job-text").props("data-test=text")
        self.update()

    def update(self, *, also_text: bool = True) -> None:
        """Show the job's text and what is wrong with it.

        Args:
            also_text: False leaves the text alone that somebody is typing.
        """
        if self._editor is None:
            return
        self._editor.language = "JSON" if self._draft.suffix.startswith(".json") else "YAML"
        if also_text and self._editor.value != self._draft.text:
            self._quiet = True
            self._editor.value = self._draft.text
            self._quiet = False
        problems = self._draft.problems
        self._message.set_visibility(bool(problems))
        self._message.text = "\n".join(self._t.said(problem.placed) for problem in problems)
        last = max(1, self._editor.value.count("\n") + 1)
        lines = sorted({min(problem.line or 1, last) for problem in problems})
        self._editor.decorations = [{"kind": "line", "line": line, "class": "bad-line"} for line in lines]

    def _typed(self) -> None:
        if self._quiet:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = ui.timer(0.25, self._take, once=True)

    def _take(self) -> None:
        if self._editor is not None and self._editor.value != self._draft.text:
            self._draft.write(self._editor.value or "")
            self._changed()
