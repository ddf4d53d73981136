"""Telling one state of a data folder from another, without opening a file."""

from __future__ import annotations

import os
from pathlib import Path

from plafond.data.walk import walk

Signature = tuple[tuple[str, int, int], ...]
"""Path, size and time of change of every file."""


def signature(folder: Path) -> Signature:
    """The state of a folder, or of a file that stands for one; empty when there is neither."""
    if not folder.is_dir():
        try:
            stat = folder.stat()
        except OSError:
            return ()
        return ((str(folder), stat.st_size, stat.st_mtime_ns),)
    found = []
    for inner, _ in walk(folder, set(), []):
        with os.scandir(inner) as entries:
            for entry in entries:
                try:
                    stat = entry.stat()
                except OSError:  # a link that leads nowhere, or a file that has gone meanwhile
                    continue
                found.append((entry.path, stat.st_size, stat.st_mtime_ns))
    return tuple(found)
