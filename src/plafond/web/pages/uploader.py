"""Dropping files into a data set: the browser sends each to the API, piece by piece, and shows how far it is."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from urllib.parse import quote

from nicegui import events, ui

from plafond.data.images import EXTENSIONS
from plafond.data.metadata import LIST_EXTENSIONS
from plafond.web.guard import CSRF_HEADER
from plafond.web.uploads import TEXTS, VIDEOS
from plafond.web.words import Words


def draw_uploader(t: Words, dataset: str, csrf: str, refresh: Callable[[], Awaitable[None]]) -> None:
    """A field that files are dropped on.

    Args:
        t: words.
        dataset: where they go.
        csrf: of the browser's session, where there is one.
        refresh: called after files have come.
    """
    url = json.dumps(f"/api/datasets/{quote(dataset)}/files/")
    language = json.dumps(f"?language={t.language}")
    header = json.dumps([{"name": CSRF_HEADER, "value": csrf}] if csrf else [])
    accepted = ",".join(sorted({".zip", *EXTENSIONS, *TEXTS, *LIST_EXTENSIONS, *VIDEOS}))
    uploader = ui.element("q-uploader").classes("drop")
    uploader.props["label"] = t("Drop pictures, captions, clips or a .zip of them here")
    uploader.props["multiple"] = uploader.props["auto-upload"] = True
    uploader.props["flat"] = uploader.props["bordered"] = True
    uploader.props["accept"] = accepted
    uploader.props["max-files"] = 20_000
    uploader.props["data-test"] = "uploader"
    uploader.props[":factory"] = (
        f"(files) => ({{url: {url} + encodeURIComponent(files[0].name) + {language}, method: 'PUT', sendRaw: true,"
        f" headers: [...{header}, {{name: 'content-type', value: 'application/octet-stream'}}]}})"
    )

    def failed(event: events.GenericEventArguments) -> None:
        try:
            message = json.loads(str(event.args))["error"]["message"]
        except (ValueError, KeyError, TypeError):
            message = t("The upload was broken off.")
        ui.notify(message, type="negative", multi_line=True, timeout=10_000, close_button=t("Close"))

    def answered(event: events.GenericEventArguments) -> None:
        try:
            refused = json.loads(str(event.args))["refused"]
        except (ValueError, KeyError, TypeError):
            return
        for sentence in refused[:5]:
            ui.notify(sentence, type="warning", multi_line=True)

    async def finished() -> None:
        uploader.run_method("removeUploadedFiles")
        await refresh()

    uploader.on("failed", failed, js_handler="(info) => emit(info.xhr.responseText)")
    uploader.on("uploaded", answered, js_handler="(info) => emit(info.xhr.responseText)")
    uploader.on("rejected", lambda: ui.notify(t("Files of this kind are not taken."), type="warning"))
    uploader.on("finish", finished, js_handler="() => emit()")
