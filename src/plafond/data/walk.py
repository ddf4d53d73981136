"""Walking through a data folder: visible files in a fixed order, caches and system folders left out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from plafond.data.images import show
from plafond.errors import DataError
from plafond.language.said import N_, Said

SKIPPED_FOLDERS = frozenset(
    {"_controls", "_latent_cache", "_t_e_cache", "_clip_vision_cache", "__MACOSX", "@eaDir", "$RECYCLE.BIN"}
)


def walk(root: Path, closed: set[Path], problems: list[Said]) -> Iterator[tuple[Path, list[str]]]:
    """Each folder below `root` once, with the names of its visible files, in the order of names.

    Links are followed, and may form loops. Folders in `closed` (resolved paths) are left out; those that
    cannot be read are named in `problems`.

    Raises:
        DataError: `root` itself cannot be read.
    """
    seen, waiting = closed - {Path(os.path.realpath(root))}, [root]
    while waiting:
        folder = waiting.pop()
        real = Path(os.path.realpath(folder))
        if real in seen:
            continue
        seen.add(real)
        try:
            with os.scandir(folder) as entries:
                visible = sorted(
                    (entry for entry in entries if not entry.name.startswith(".")),
                    key=lambda entry: (entry.name.casefold(), entry.name),
                )
        except OSError as error:
            values = {"path": show(folder), "reason": str(error.strerror)}
            if folder == root:
                raise DataError(
                    N_("{path}: cannot be read ({reason}); expected a folder of pictures."), **values
                ) from error
            problems.append(Said(N_("{path}: cannot be read ({reason}); the folder is left out."), values))
            continue
        folders = [entry.name for entry in visible if entry.is_dir() and entry.name not in SKIPPED_FOLDERS]
        waiting += [folder / name for name in reversed(folders)]
        yield folder, [entry.name for entry in visible if not entry.is_dir()]
