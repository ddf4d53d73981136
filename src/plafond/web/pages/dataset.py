"""One data set: its pictures with their captions, what is wrong with it, and its buckets."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from fastapi import Request
from nicegui import events, run, ui

from plafond.web.datasets import Listed
from plafond.web.guard import session_of
from plafond.web.pages.buckets import Buckets
from plafond.web.pages.frame import counted, frame, heading
from plafond.web.pages.hints import drawn, told
from plafond.web.pages.uploader import draw_uploader
from plafond.web.site import Site
from plafond.web.words import Words

PAGE = 36
"""Pictures that are shown at once."""


@dataclass(frozen=True)
class Item:
    """A picture or clip as it is shown.

    Args:
        name: in the data set.
        caption: as it is written.
        size: in pixels, of pictures.
    """

    name: str
    caption: str
    size: tuple[int, int] | None


def add(site: Site) -> None:
    """The route ``/datasets/{name}``."""

    @ui.page("/datasets/{name}")
    async def dataset(request: Request, name: str) -> None:
        with frame(site, request, name, at="/datasets") as t, drawn(t):
            secret = session_of(request.headers)
            csrf = site.sessions.csrf(secret) if secret is not None and site.sessions.knows(secret) else ""
            await View(site, t, name, csrf).draw()


class View:
    """A data set as it is edited.

    Args:
        site: the page's.
        t: words.
        name: of the data set.
        csrf: what uploads have to bring along.
    """

    def __init__(self, site: Site, t: Words, name: str, csrf: str):
        self.site, self.t, self.name, self._csrf = site, t, name, csrf
        self._items: list[Item] = []
        self._control: str | None = None

    async def draw(self) -> None:
        """Draw everything.

        Raises:
            PlafondError: there is no such data set.
        """
        t, site = self.t, self.site
        site.datasets.folder(self.name)
        with ui.element("div").classes("between"):
            with ui.element("div").classes("line"):
                heading(self.name, "h1")
                self._count = ui.label().classes("soft").props("data-test=count")
            with ui.element("div").classes("line"):
                ui.button(t("Find and replace"), icon="find_replace", on_click=self._find_and_replace).props(
                    "flat no-caps dense data-test=find-replace"
                )
                ui.button(t("Delete"), icon="delete_outline", on_click=self._ask_delete).props(
                    "flat no-caps dense"
                )
        draw_uploader(t, self.name, self._csrf, self._refresh)
        self._problems = ui.element("section").classes("card problems").props("data-test=problems")
        with (
            ui.expansion(t("Buckets"), icon="bar_chart")
            .classes("card fold")
            .props("dense data-test=buckets") as expansion
        ):
            self._buckets = Buckets(t, site, self.name)
        expansion.on_value_change(lambda event: self._buckets.update() if event.value else None)
        with ui.element("div").classes("between"):
            self._search = ui.input(placeholder=t("Search captions"), on_change=self._search_typed).props(
                f'outlined dense clearable debounce=300 aria-label="{t("Search captions")}"'
            )
            others = [other for other in site.datasets.names() if other != self.name]
            beside = ui.select(
                {None: t("nothing"), **{other: other for other in others}},
                label=t("Show control images of"),
                value=None,
                on_change=self._control_chosen,
            ).props("outlined dense options-dense data-test=control")
            beside.classes("slim-select").set_visibility(bool(others))
        ui.label(t("Captions are saved as you type; Ctrl+Enter goes to the next one.")).classes("soft")
        self._gallery = ui.element("div").classes("gallery").props("data-test=gallery")
        self._pages = ui.pagination(1, 1, direction_links=True, on_change=self._draw_page)
        await self._refresh()

    async def _refresh(self) -> None:
        found = await run.io_bound(self.site.datasets.listed, self.name)
        if found is None:
            return
        self._items = self._all_items(found)
        t, count = self.t, len(self._items)
        self._count.text = counted(t, count)
        self._draw_problems(found)
        self._draw_page()

    def _all_items(self, found: Listed) -> list[Item]:
        pictures = [Item(one.name, one.caption, (one.width, one.height)) for one in found.pictures]
        clips = [Item(name, self.site.datasets.caption_of(self.name, name), None) for name in found.videos]
        return [*pictures, *clips]

    def _draw_problems(self, found: Listed) -> None:
        self._problems.clear()
        sentences = [*found.problems, *found.notes]
        self._problems.set_visibility(bool(sentences))
        with self._problems:
            if found.problems:
                heading(self.t("Files that cannot be used"))
            for sentence in found.problems:
                ui.label(self.t.said(sentence)).classes("error")
            for sentence in found.notes:
                ui.label(self.t.said(sentence)).classes("soft")

    def _wanted(self) -> list[Item]:
        text = (self._search.value or "").strip().lower()
        return [item for item in self._items if text in item.caption.lower() or text in item.name.lower()]

    def _search_typed(self) -> None:
        self._pages.value = 1
        self._draw_page()

    def _control_chosen(self, event: events.ValueChangeEventArguments[str | None]) -> None:
        self._control = event.value
        self._draw_page()

    def _draw_page(self) -> None:
        wanted = self._wanted()
        pages = max(1, -(-len(wanted) // PAGE))
        self._pages.max = pages
        self._pages.set_visibility(pages > 1)
        page = min(int(self._pages.value or 1), pages)
        self._gallery.clear()
        with self._gallery:
            for item in wanted[(page - 1) * PAGE : page * PAGE]:
                self._draw_item(item)
            if not wanted and self._items:
                ui.label(self.t("Nothing is called so.")).classes("soft")

    def _draw_item(self, item: Item) -> None:
        t = self.t
        at = f"/api/datasets/{quote(self.name)}"
        with ui.element("article").classes("card shot") as card:
            with ui.element("div").classes("pair"):
                if item.size is None:
                    source = f"{at}/files/{quote(item.name)}"
                    ui.html(f'<video src="{source}" controls preload="metadata"></video>', sanitize=False)
                else:
                    self._draw_picture(self.name, item.name)
                    other = (
                        None if self._control is None else self.site.datasets.beside(self._control, item.name)
                    )
                    if self._control is not None and other is not None:
                        self._draw_picture(self._control, other)
            with ui.element("div").classes("between"):
                size = "" if item.size is None else f" · {item.size[0]}×{item.size[1]}"
                ui.label(f"{item.name}{size}").classes("path")
                remove = ui.button(icon="delete_outline", on_click=lambda: self._remove(item, card))
                remove.props("flat round dense size=sm")
                remove.props["aria-label"] = t("Delete {name}", name=item.name)
            area = ui.textarea(value=item.caption, placeholder=t("no caption")).classes("caption")
            area.props(
                f'outlined dense autogrow debounce=500 rows=2 aria-label="{t("Caption of {name}", name=item.name)}"'
            )
            area.props(f'data-test="caption-{item.name}"')
            area.on_value_change(lambda event: self._write(item, str(event.value or "")))

    def _draw_picture(self, dataset: str, name: str) -> None:
        at = f"/api/datasets/{quote(dataset)}"
        ui.html(
            f'<a href="{at}/files/{quote(name)}" target="_blank">'
            f'<img src="{at}/thumbnails/{quote(name)}" alt="" loading="lazy"></a>',
            sanitize=False,
        )

    # ------------------------------------------------------------------------------------------------ changes

    def _write(self, item: Item, caption: str) -> None:
        with told(self.t):
            self.site.datasets.caption(self.name, item.name, caption)
            place = next(place for place, one in enumerate(self._items) if one.name == item.name)
            self._items[place] = Item(item.name, caption.strip(), item.size)

    def _remove(self, item: Item, card: ui.element) -> None:
        with told(self.t):
            self.site.datasets.remove(self.name, item.name)
            self._items = [one for one in self._items if one.name != item.name]
            card.delete()
            ui.notify(self.t("{name} is deleted.", name=item.name))

    async def _find_and_replace(self) -> None:
        t = self.t
        with ui.dialog() as dialog, ui.card().classes("ask"):
            heading(t("Find and replace in all captions"))
            find = ui.input(t("Find")).props("outlined dense data-test=find").classes("whole")
            instead = ui.input(t("Replace with")).props("outlined dense data-test=replace").classes("whole")
            case = ui.checkbox(t("Capital letters matter"), value=True)
            said = ui.label().classes("soft").props("data-test=would-change")

            def count() -> None:
                if not find.value:
                    said.text = ""
                    return
                found = self.site.datasets.replace(
                    self.name, find.value, instead.value or "", case=bool(case.value), try_only=True
                )
                said.text = t("{count} captions change", count=len(found))

            for element in (find, instead, case):
                element.on_value_change(count)
            with ui.element("div").classes("line end"):
                ui.button(t("Cancel"), on_click=lambda: dialog.submit(False)).props("flat no-caps")
                ui.button(t("Replace"), on_click=lambda: dialog.submit(True)).props(
                    "unelevated no-caps data-test=really-replace"
                )
        if await dialog:
            with told(t):
                changed = self.site.datasets.replace(
                    self.name, find.value or "", instead.value or "", case=bool(case.value)
                )
                ui.notify(t("{count} captions have changed.", count=len(changed)))
            await self._refresh()
        dialog.delete()

    async def _ask_delete(self) -> None:
        t = self.t
        with ui.dialog() as dialog, ui.card().classes("ask"):
            heading(t("Delete {name}?", name=self.name))
            ui.label(t("Its pictures and captions are deleted from the disk."))
            with ui.element("div").classes("line end"):
                ui.button(t("Cancel"), on_click=lambda: dialog.submit(False)).props("flat no-caps")
                ui.button(t("Delete"), on_click=lambda: dialog.submit(True)).props(
                    "unelevated no-caps color=negative"
                )
        if await dialog:
            with told(t):
                self.site.datasets.delete(self.name)
                ui.navigate.to("/datasets")
        dialog.delete()
