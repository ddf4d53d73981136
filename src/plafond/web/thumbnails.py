"""Small copies of pictures for the page, made when they are first asked for and kept beside its database."""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path

from plafond.data.images import load_rgb
from plafond.jobs.home import Home

SIDE = 384
"""Pixels of the longer side."""


def thumbnail(home: Home, path: Path) -> Path:
    """A small copy of a picture; an edited picture gets a new one.

    Raises:
        DataError: the picture cannot be read.
    """
    stat = path.stat()
    key = hashlib.sha256(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\0{SIDE}".encode()).hexdigest()
    target = home.path / "thumbnails" / key[:2] / f"{key}.webp"
    if not target.is_file():
        image = load_rgb(path, side=SIDE)
        image.thumbnail((SIDE, SIDE))
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_suffix(f".{secrets.token_hex(4)}")
        image.save(temporary, "WEBP", quality=80)
        temporary.replace(target)
    return target
