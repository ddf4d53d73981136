"""The log-in: one field for the token, without a script; it looks like the page but needs nothing of it."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.datastructures import Headers

from plafond.web.guard import COOKIE, SESSION_SECONDS, address_of, same, session_of, too_many
from plafond.web.site import Site

TEXTS = {
    "en": {
        "title": "Log in",
        "label": "Token",
        "hint": "plafond ui printed it when it was started.",
        "button": "Log in",
        "wrong": "This is not the token.",
    },
    "fr": {
        "title": "Connexion",
        "label": "Jeton",
        "hint": "plafond ui l’a affiché au démarrage.",
        "button": "Se connecter",
        "wrong": "Ce n’est pas le jeton.",
    },
}


def router(site: Site) -> APIRouter:
    """Logging in and out."""
    pages = APIRouter(include_in_schema=False)

    @pages.get("/login")
    def ask(request: Request) -> Response:
        if site.access.token is None or site.sessions.knows(session_of(request.headers)):
            return RedirectResponse("/", status_code=303)
        return _page(request.headers)

    @pages.post("/login")
    def log_in(request: Request, token: Annotated[str, Form(max_length=1000)] = "") -> Response:
        address = address_of(request.scope)
        if (wait := site.throttle.wait(address)) > 0:
            return too_many(wait)
        if site.access.token is None or not same(token.strip(), site.access.token):
            site.throttle.failed(address)
            return _page(request.headers, wrong=True)
        answer = RedirectResponse("/", status_code=303)
        answer.set_cookie(
            COOKIE,
            site.sessions.open(),
            max_age=SESSION_SECONDS,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    @pages.post("/logout")
    def log_out(request: Request) -> Response:
        if (secret := session_of(request.headers)) is not None:
            site.sessions.close(secret)
        answer = RedirectResponse("/login", status_code=303)
        answer.delete_cookie(COOKIE)
        return answer

    return pages


def _page(headers: Headers, *, wrong: bool = False) -> HTMLResponse:
    language = "fr" if headers.get("accept-language", "").lower().startswith("fr") else "en"
    texts = {name: escape(text) for name, text in TEXTS[language].items()}
    html = (files("plafond.web") / "static" / "login.html").read_text(encoding="utf-8")
    said = f'<p role="alert" class="wrong">{texts["wrong"]}</p>' if wrong else ""
    for name, text in {**texts, "language": language, "said": said}.items():
        html = html.replace(f"{{{{{name}}}}}", text)
    return HTMLResponse(html, status_code=401 if wrong else 200)
