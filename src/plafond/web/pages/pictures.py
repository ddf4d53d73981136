"""A field for one picture: its path, a small copy of it, and a button that brings one from the visitor's machine."""

from __future__ import annotations

import itertools
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote

from nicegui import events, ui

from plafond.data.images import EXTENSIONS
from plafond.job.wording import expanded
from plafond.memory.gpus import MIB
from plafond.web.datasets import Datasets
from plafond.web.draft import Draft
from plafond.web.kinds import Field
from plafond.web.pages.hints import told
from plafond.web.pages.inputs import Changed, Input
from plafond.web.uploads import ExistsError, receive
from plafond.web.words import Words

SHELF = "sample images"
"""The data set that such pictures are put into."""

LARGEST = 64 * MIB
"""Bytes of a picture."""


class PictureInput(Input):
    """A picture that a preview is made from.

    Args:
        t: words.
        field: what it is.
        draft: the job.
        changed: told of what was entered.
        datasets: where pictures are kept.
        folder: where the job's relative paths start.
        prefix: of its key.
    """

    def __init__(
        self,
        t: Words,
        field: Field,
        draft: Draft,
        changed: Changed,
        *,
        datasets: Datasets,
        folder: Path,
        prefix: str,
    ):
        self._datasets, self._folder = datasets, folder
        super().__init__(t, field, draft, changed, prefix=prefix)

    def _draw(self) -> ui.element:
        element = super()._draw()
        assert isinstance(element, ui.input)
        upload = ui.upload(auto_upload=True, max_file_size=LARGEST, on_upload=self._came).classes("hidden")
        upload.props(f'accept="{",".join(sorted(EXTENSIONS))}" data-test="{self.key}-file"')
        upload.on("rejected", lambda: ui.notify(self._t("Files of this kind are not taken."), type="warning"))
        with element.add_slot("prepend"):
            self._copy = ui.element("img").classes("copy").props('alt=""')
        with element.add_slot("append"):
            label = self._t("Upload a picture")
            button = ui.button(icon="upload", on_click=lambda: upload.run_method("pickFiles"))
            button.props(f'flat round dense aria-label="{label}" title="{label}"')
        return element

    def _show(self, element: ui.element, value: Any) -> None:
        super()._show(element, value)
        source = self._source(str(value or ""))
        self._copy.set_visibility(bool(source))
        if source:
            self._copy.props["src"] = source
            self._copy.update()

    def _source(self, value: str) -> str:
        """Where the page has a small copy of a picture of one of its data sets."""
        path = self._folder / expanded(value) if value else self._folder
        if not path.is_relative_to(self._datasets.root):
            return ""
        name, *file = path.relative_to(self._datasets.root).parts or ("",)
        return f"/api/datasets/{quote(name)}/thumbnails/{quote('/'.join(file))}" if file else ""

    async def _came(self, event: events.UploadEventArguments) -> None:
        with told(self._t):
            if SHELF not in self._datasets.names():
                self._datasets.create(SHELF)
            path = await self._kept(self._datasets.folder(SHELF), event)
            near = path.is_relative_to(self._folder)
            self._changed(self, path.relative_to(self._folder).as_posix() if near else str(path))
            self.update()

    async def _kept(self, shelf: Path, event: events.UploadEventArguments) -> Path:
        """Another picture of the same name keeps its place."""
        own = PurePath(event.file.name)
        for number in itertools.count(1):
            name = own.name if number == 1 else f"{own.stem}-{number}{own.suffix}"
            try:
                taken = await receive(shelf, name, event.file.iterate(), replace=False)
            except ExistsError:
                continue
            return shelf / (taken.added + taken.same)[0]
        raise AssertionError("numbers do not end")
