"""Who may talk to the page: hosts, origins, sessions, tokens.

On this machine alone (the default) nobody has to log in; but every request must name this machine as its host, so that
a foreign page cannot reach it through a name of its own, and every change must come from the page itself or from a
program without a browser. As soon as the page can be reached from elsewhere, a token is asked for: in a header by
programs, at the log-in by people, whose browser then holds a session.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "plafond_session"
CSRF_HEADER = "x-plafond-csrf"
SESSION_SECONDS = 30 * 24 * 3600
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
OPEN_PATHS = ("/login", "/static/login.css", "/static/login.js", "/static/icon.svg")
"""What is served to anybody: the log-in and what it looks like."""

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")

TRIES = 5
TRY_SECONDS = 60.0
"""So many wrong tokens in so many seconds from one address, and four times as many from all of them together."""

POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; style-src 'self' 'unsafe-inline';"
    " script-src 'self' 'unsafe-inline' 'unsafe-eval'; font-src 'self' data:; connect-src 'self' ws: wss:;"
    " object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
"""Nothing is loaded from elsewhere. Vue compiles its templates in the browser, hence the eval."""


@dataclass(frozen=True)
class Access:
    """How the page can be reached.

    Args:
        host: the address that it binds to.
        port: its port.
        token: what one has to know to use it; None when it is open to this machine alone.
    """

    host: str
    port: int
    token: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own, for itself alone."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass
class Sessions:
    """Sessions of people who have logged in; they end with the page's process.

    Attributes:
        ends: when each session ends, by its secret.
    """

    ends: dict[str, float] = field(default_factory=dict)
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32))

    def open(self) -> str:
        """A new session's secret."""
        now = time.time()
        self.ends = {name: end for name, end in self.ends.items() if end > now}
        secret = secrets.token_urlsafe(32)
        self.ends[secret] = now + SESSION_SECONDS
        return secret

    def knows(self, secret: str | None) -> bool:
        """Whether a session is open."""
        return secret is not None and self.ends.get(secret, 0.0) > time.time()

    def close(self, secret: str) -> None:
        """End a session."""
        self.ends.pop(secret, None)

    def csrf(self, secret: str) -> str:
        """What a request of this session has to say to change something."""
        return hmac.new(self._key, secret.encode(), "sha256").hexdigest()


@dataclass
class Throttle:
    """Counts wrong tokens.

    Attributes:
        failures: times of the last wrong ones by address.
    """

    failures: dict[str, list[float]] = field(default_factory=dict)

    def wait(self, address: str) -> float:
        """Seconds that this address has to wait before it may try again; 0 when it may now."""
        now = time.monotonic()
        self.failures = {
            name: recent
            for name, times in self.failures.items()
            if (recent := [at for at in times if now - at < TRY_SECONDS])
        }
        mine = self.failures.get(address, [])
        everybody = sorted(at for times in self.failures.values() for at in times)
        waits = [
            times[-limit] + TRY_SECONDS - now
            for times, limit in ((mine, TRIES), (everybody, 4 * TRIES))
            if len(times) >= limit
        ]
        return max(waits, default=0.0)

    def failed(self, address: str) -> None:
        """Note a wrong token."""
        self.failures.setdefault(address, []).append(time.monotonic())


class Guard:
    """ASGI middleware in front of everything, sockets included.

    Args:
        app: what it guards.
        access: how the page can be reached.
        sessions: of people who have logged in.
        throttle: counts wrong tokens.
    """

    def __init__(self, app: ASGIApp, access: Access, sessions: Sessions, throttle: Throttle):
        self.app, self.access, self.sessions, self.throttle = app, access, sessions, throttle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it here."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is None:
            await self.app(scope, receive, _with_headers(scope, send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await refusal(scope, receive, _with_headers(scope, send))

    def _refusal(self, scope: Scope) -> Response | None:
        """The answer to a request that goes no further."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self.access.is_local and _hostname(host) not in LOCAL_NAMES:
            return _refused(421, f"this page answers to {', '.join(LOCAL_NAMES)} only")
        changes = scope["type"] == "websocket" or scope["method"] not in SAFE_METHODS
        if changes and not _same_origin(headers, host):
            return _refused(403, "the request comes from another site")
        if self.access.token is None or scope["path"] in OPEN_PATHS:
            return None
        return self._without_session(scope, headers, changes=changes)

    def _without_session(self, scope: Scope, headers: Headers, *, changes: bool) -> Response | None:
        kind, _, token = headers.get("authorization", "").partition(" ")
        if token:
            return self._without_token(scope, token if kind.lower() == "bearer" else "")
        secret = session_of(headers)
        if secret is None or not self.sessions.knows(secret):
            if scope["type"] == "http" and "text/html" in headers.get("accept", ""):
                return RedirectResponse("/login", status_code=303)
            return _refused(401, "log in, or send the token as Authorization: Bearer TOKEN")
        if changes and scope["path"].startswith("/api/"):
            said = headers.get(CSRF_HEADER, "")
            if not same(said, self.sessions.csrf(secret)):
                return _refused(403, f"the header {CSRF_HEADER} is missing or wrong")
        return None

    def _without_token(self, scope: Scope, token: str) -> Response | None:
        address = address_of(scope)
        if (wait := self.throttle.wait(address)) > 0:
            return too_many(wait)
        if same(token, self.access.token or ""):
            return None
        self.throttle.failed(address)
        return _refused(401, "the token is wrong")


def same(said: str, known: str) -> bool:
    """Whether two secrets are equal, in a time that does not tell where they differ."""
    return bool(known) and hmac.compare_digest(said.encode(), known.encode())


def session_of(headers: Headers) -> str | None:
    """The secret of a request's session, known or not."""
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return None if cookie is None else cookie.value


def address_of(scope: Scope) -> str:
    """Whom a request comes from."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def too_many(wait: float) -> Response:
    """The answer to somebody who guesses."""
    seconds = str(int(wait) + 1)
    return PlainTextResponse(
        f"too many wrong tokens; try again in {seconds} s", 429, headers={"retry-after": seconds}
    )


def _refused(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "line": None, "key": None}}, status_code=status)


def _hostname(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _same_origin(headers: Headers, host: str) -> bool:
    """Whether a request comes from this page, or from a program that is no browser."""
    origin = headers.get("origin")
    if origin is not None:
        return bool(host) and origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")
    return headers.get("sec-fetch-site", "none") in ("same-origin", "none")


def _with_headers(scope: Scope, send: Send) -> Send:
    async def add(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _headers():
                headers.setdefault(name, value)
        await send(message)

    return add


def _headers() -> Iterable[tuple[str, str]]:
    yield "content-security-policy", POLICY
    yield "x-content-type-options", "nosniff"
    yield "x-frame-options", "DENY"
    yield "referrer-policy", "same-origin"
    yield "cross-origin-opener-policy", "same-origin"
    yield "cross-origin-resource-policy", "same-origin"
