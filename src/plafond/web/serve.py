"""Running the page: its address, its token, its server."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from plafond.errors import UsageError
from plafond.jobs.home import Home
from plafond.language.said import N_
from plafond.web.app import make_app
from plafond.web.guard import Access, is_loopback
from plafond.web.site import Site

SHORTEST_TOKEN = 12


def access_for(host: str, port: int, token: str | None) -> Access:
    """How the page can be reached; where others can reach it, a token is made up when none is given.

    Raises:
        UsageError: the token is too short.
    """
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise UsageError(
            N_("--token: {count} characters; expected at least {least}"),
            count=len(token),
            least=SHORTEST_TOKEN,
        )
    if token is None and not is_loopback(host):
        token = secrets.token_urlsafe(24)
    return Access(host, port, token)


def serve(
    home: Home, access: Access, *, allowed: tuple[Path, ...] = (), ready: Callable[[str], None] = print
) -> None:
    """Serve the page until it is interrupted.

    Args:
        home: its home folder.
        access: how it can be reached.
        allowed: more folders that jobs may read pictures from and write runs into.
        ready: is told its address.

    Raises:
        UsageError: the address is taken, or not this machine's.
    """
    logging.basicConfig(format="%(asctime)s %(message)s")
    site = Site(home.make(), access, allowed)
    app = make_app(site)
    # it keeps nothing there, but looks for the folder when it is imported
    os.environ.setdefault("NICEGUI_STORAGE_PATH", str(home.path / "page"))
    from plafond.web.pages import add_pages

    add_pages(app, site)
    config = uvicorn.Config(
        app,
        host=access.host,
        port=access.port,
        log_level=logging.WARNING,
        # what a page's own server is told about proxies decides who counts as a stranger
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    listener = _listen(access)
    port = listener.getsockname()[1]
    host = f"[{access.host}]" if ":" in access.host else access.host
    ready(f"http://{host}:{port}/")
    uvicorn.Server(config).run(sockets=[listener])


def _listen(access: Access) -> socket.socket:
    family = socket.AF_INET6 if ":" in access.host else socket.AF_INET
    try:
        return socket.create_server((access.host, access.port), family=family)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            N_("the page cannot listen at {host}, port {port}: {reason}; try another --port"),
            host=access.host,
            port=access.port,
            reason=reason,
        ) from error
