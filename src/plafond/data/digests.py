"""The hash of a picture's bytes, without reading thousands of unchanged files on every start.

Hashes are remembered in one small file per cache folder, by everything that changes when a file is edited:
size, modification time, inode and change time. The last cannot be set back by a program, so an editor that
restores the modification time is still noticed.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

from plafond.data.cache import write_whole

RACY_NS = 2_000_000_000
"""A file changed this shortly before it is hashed may change within the clock's grain: not remembered."""

_TRUST = os.name == "posix"  # elsewhere the change time is that of creation


def digest_of(data: bytes) -> str:
    """The hash of a file's bytes: 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


class Digests:
    """Hashes of files, remembered in `folder` (None: in this process only).

    Args:
        folder: an existing cache folder.
    """

    def __init__(self, folder: Path | None):
        self._file = folder / "digests.json" if folder is not None and _TRUST else None
        self._known = _read(self._file)
        self._used: dict[str, list[int | str]] = {}

    def of(self, path: Path) -> str:
        """The hash of the bytes that `path` holds now. Raises OSError when it cannot be read."""
        stat = path.stat()
        stamp = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
        name = str(path.absolute())
        *old_stamp, old_digest = self._known.get(name, [""])
        digest = str(old_digest) if old_stamp == stamp else digest_of(path.read_bytes())
        if time.time_ns() - max(stat.st_mtime_ns, stat.st_ctime_ns) > RACY_NS:
            self._used[name] = [*stamp, digest]
        return digest

    def save(self) -> None:
        """Remember what was asked for. A folder that cannot be written to only costs time on the next"
        " start."""
        if self._file is None or all(self._known.get(name) == entry for name, entry in self._used.items()):
            return
        # Another run may have added its own files meanwhile.
        merged = {**_read(self._file), **self._used}
        try:
            write_whole(self._file, json.dumps(merged).encode("utf-8", errors="surrogatepass"))
        except OSError:
            return


def _read(file: Path | None) -> dict[str, list[int | str]]:
    try:
        known = json.loads(file.read_bytes()) if file is not None else {}
    except (OSError, ValueError):
        return {}
    valid = isinstance(known, dict) and all(
        isinstance(entry, list) and len(entry) == 5 and isinstance(entry[-1], str) for entry in known.values()
    )
    return known if valid else {}
