"""The page's web application: the guard in front, the REST API, the log-in, static files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from plafond import __version__
from plafond.errors import DataError, JobError, OutOfSpaceError, PlafondError
from plafond.job.editing import EditError
from plafond.jobs.store import NoJobError
from plafond.language.speech import SOURCE
from plafond.plan.models import as_json, entries, published
from plafond.web import api_datasets, api_jobs, login
from plafond.web.asking import AskError
from plafond.web.datasets import NoSuchError
from plafond.web.guard import CSRF_HEADER, Guard, session_of
from plafond.web.limits import BodyLimit
from plafond.web.models import Refusal, Said, SessionInfo
from plafond.web.places import OutsideError
from plafond.web.site import Site
from plafond.web.uploads import ExistsError, TooLargeError
from plafond.web.words import LANGUAGES, words

STATUS: dict[type[PlafondError], int] = {
    NoJobError: 404,
    NoSuchError: 404,
    OutsideError: 403,
    ExistsError: 409,
    TooLargeError: 413,
    OutOfSpaceError: 507,
    JobError: 422,
    AskError: 422,
    DataError: 422,
    PlafondError: 400,
}
"""The answer to an error of each kind; the first that it is counts."""


def make_app(site: Site) -> FastAPI:
    """The application of one site, without the pages that are drawn by NiceGUI."""

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        await site.open()
        try:
            yield
        finally:
            await site.close()

    app = FastAPI(
        title="plafond",
        version=__version__,
        description="Jobs, the queue, forecasts and data sets. Errors say in one sentence what was wrong.",
        openapi_url="/api/openapi.json",
        # the usual ones load their scripts from elsewhere
        docs_url=None,
        redoc_url=None,
        lifespan=life,
    )
    app.include_router(api_jobs.router(site))
    app.include_router(api_datasets.router(site))
    app.include_router(login.router(site))

    @app.get("/api/session", tags=["machine"])
    def get_session(request: Request) -> SessionInfo:
        """What a page has to send as its header with every change; empty where nobody has to log in."""
        secret = session_of(request.headers)
        known = secret is not None and site.sessions.knows(secret)
        return SessionInfo(header=CSRF_HEADER, csrf=site.sessions.csrf(secret) if secret and known else "")

    @app.get("/api/models", tags=["machine"])
    def list_models() -> list[dict[str, Any]]:
        """What can be trained, what its weights take, and the smallest card that trains a LoRA on it."""
        return [as_json(entry) for entry in entries(published())]

    app.mount("/static", StaticFiles(directory=str(files("plafond.web") / "static")), name="plafond-static")
    _add_errors(app)
    app.add_middleware(BodyLimit)
    app.add_middleware(Guard, access=site.access, sessions=site.sessions, throttle=site.throttle)
    return app


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(PlafondError)
    def refused(request: Request, error: PlafondError) -> JSONResponse:
        status = next(status for kind, status in STATUS.items() if isinstance(error, kind))
        language = request.query_params.get("language")
        speak = words(language if language in LANGUAGES else SOURCE).said
        if isinstance(error, JobError):
            return _said(status, speak(error.message), error.line, error.key)
        if isinstance(error, AskError):
            return _said(status, speak(error.said), error.line, error.key)
        return _said(status, speak(error.said))

    @app.exception_handler(EditError)
    def unwritable(request: Request, error: EditError) -> JSONResponse:
        return _said(422, str(error))

    @app.exception_handler(RequestValidationError)
    def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        found = error.errors()[0]
        place = ".".join(str(part) for part in found["loc"])
        return _said(422, f"{place}: {found['msg']}")

    @app.exception_handler(HTTPException)
    def elsewhere(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse(
            Refusal(error=Said(message=str(error.detail))).model_dump(),
            error.status_code,
            headers=error.headers,
        )


def _said(status: int, message: str, line: int | None = None, key: str | None = None) -> JSONResponse:
    return JSONResponse(Refusal(error=Said(message=message, line=line, key=key)).model_dump(), status)
