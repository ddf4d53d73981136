"""How much a request may say: all but uploads, which count for themselves, fits into a few megabytes."""

from __future__ import annotations

import re

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from plafond.memory.gpus import MIB

MOST = 4 * MIB
"""Bytes of a request that is no upload."""

UPLOAD = re.compile(r"/api/datasets/[^/]+/files/")


class BodyLimit:
    """ASGI middleware that ends a request whose body is too long, also where its length is not said before.

    Args:
        app: what it stands in front of.
    """

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, counting."""
        if scope["type"] != "http" or (scope["method"] == "PUT" and UPLOAD.match(scope["path"])):
            await self.app(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > MOST:
                raise HTTPException(413, f"the request is larger than {MOST // MIB} MiB")
            return message

        await self.app(scope, counted, send)
