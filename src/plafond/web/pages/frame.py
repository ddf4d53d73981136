"""What all pages share: the header, colours, language, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from importlib.resources import files
from pathlib import Path

from fastapi import Request
from nicegui import ui

from plafond import __version__
from plafond.web.guard import session_of
from plafond.web.site import Site
from plafond.web.words import LANGUAGES, N_, Words, language_for, words

STATIC = Path(str(files("plafond.web") / "static"))
ICON = STATIC / "icon.svg"
LANGUAGE_COOKIE = "plafond_language"
DARK_COOKIE = "plafond_dark"

VIEWS = {"/": N_("Dashboard"), "/jobs": N_("Jobs"), "/datasets": N_("Data sets"), "/models": N_("Models")}

STATES = {
    "draft": N_("draft"),
    "queued": N_("waiting"),
    "running": N_("running"),
    "stopping": N_("stopping"),
    "stopped": N_("stopped"),
    "done": N_("done"),
    "failed": N_("failed"),
}
PHASES = {
    "load": N_("Load"),
    "encode_text": N_("Encode text"),
    "cache_latents": N_("Cache latents"),
    "train": N_("Train"),
    "preview": N_("Preview"),
    "save": N_("Save"),
}


def words_for(request: Request) -> Words:
    """The words in which a request is answered."""
    return words(language_for(request.cookies.get(LANGUAGE_COOKIE), request.headers.get("accept-language")))


@contextmanager
def frame(site: Site, request: Request, title: str, *, at: str = "") -> Iterator[Words]:
    """A page with its header; what is drawn inside of the block is its content.

    Args:
        site: the page's.
        request: the browser's.
        title: English title of the view, or a name.
        at: the view of the navigation that it belongs to.
    """
    t = words_for(request)
    ui.page_title(f"{t(title)} · plafond")
    ui.add_head_html(f'<link rel="stylesheet" href="/static/page.css?{__version__}">')
    ui.add_head_html(f'<script src="/static/page.js?{__version__}"></script>')
    ui.add_head_html(f'<script>document.documentElement.lang="{t.language}"</script>')
    ui.colors(
        primary="#0f766e", secondary="#475569", positive="#15803d", negative="#c2261c", warning="#b45309"
    )
    dark = ui.dark_mode(_dark(request))
    _header(site, request, t, at, dark)
    with ui.element("main").classes("page").props("id=content"):
        yield t


def _header(site: Site, request: Request, t: Words, at: str, dark: ui.dark_mode) -> None:
    with ui.element("header").classes("top"):
        ui.link(t("Skip to the content"), "#content").classes("skip")
        with ui.link(target="/").classes("brand").props(f'aria-label="plafond, {t("Dashboard")}"'):
            ui.html('<img src="/static/icon.svg" alt="" width="26" height="26">', sanitize=False)
            ui.label("plafond")
        with ui.element("nav").props(f'aria-label="{t("Views")}"'):
            for path, label in VIEWS.items():
                link = ui.link(t(label), path)
                if path == at:
                    link.classes("here").props("aria-current=page")
        ui.space()
        ui.button(t("New job"), icon="add", on_click=lambda: ui.navigate.to("/jobs/new")).props(
            "unelevated no-caps dense"
        ).classes("new").props("data-test=new-job")
        with (
            ui.button(t.language.upper()).props(f'flat no-caps dense aria-label="{t("Language")}"'),
            ui.menu(),
        ):
            for code, name in LANGUAGES.items():
                ui.menu_item(name, lambda code=code: _remember(LANGUAGE_COOKIE, code, reload=True)).props(
                    f"data-test=language-{code}"
                )

        def turn() -> None:
            dark.value = {None: True, True: False, False: None}[dark.value]
            said = {None: "auto", True: "dark", False: "light"}[dark.value]
            _remember(DARK_COOKIE, said, reload=False)
            look.props(f"icon={_look(dark.value)}")

        look = ui.button(on_click=turn).props(
            f'flat round dense icon={_look(dark.value)} aria-label="{t("Light or dark")}"'
        )
        if site.access.token is not None and session_of(request.headers) is not None:
            leave = t("Log out")
            ui.html(
                f'<form method="post" action="/logout"><button class="leave">{leave}</button></form>',
                sanitize=False,
            )


def _dark(request: Request) -> bool | None:
    return {"dark": True, "light": False}.get(request.cookies.get(DARK_COOKIE, ""))


def _look(dark: bool | None) -> str:
    return {None: "brightness_auto", True: "dark_mode", False: "light_mode"}[dark]


def _remember(name: str, value: str, *, reload: bool) -> None:
    ui.run_javascript(
        f'document.cookie = "{name}={value}; path=/; max-age=31536000; samesite=strict";'
        + ("location.reload()" if reload else "")
    )


def heading(text: str, tag: str = "h2") -> ui.html:
    """A heading of the page, or of a part of it."""
    return ui.html(escape(text), sanitize=False, tag=tag)


def chip(t: Words, state: str) -> ui.label:
    """A job's state in colour."""
    return ui.label(t(STATES[state])).classes(f"chip {state}").props(f"data-test=state-{state}")


def counted(t: Words, count: int) -> str:
    """How many pictures and clips there are."""
    return t("1 picture or clip") if count == 1 else t("{count} pictures and clips", count=count)
