"""Lists of pictures and captions: JSON Lines, CSV, and AI Toolkit's JSON index.

Understood, with paths relative to the list's own folder (or, failing that, to the working directory):

- ``*.jsonl``: one object per line, ``{"file_name": "a.png", "text": "a cat"}`` (Hugging Face image folders)
  or ``{"image_path": ..., "caption": ...}`` (musubi-tuner);
- ``*.csv``: the same as columns;
- ``*.json``: a list of such objects, or ``{"a.png": {"caption": ...}}``, or ``{"a.png": "a cat"}``.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plafond.data.encodings import read_text
from plafond.data.images import show
from plafond.errors import DataError

PATH_KEYS = ("file_name", "image_path", "image", "path")
CAPTION_KEYS = ("caption", "text", "prompt")
LIST_EXTENSIONS = frozenset({".jsonl", ".csv", ".json"})
LIST_NAMES = ("metadata.jsonl", "metadata.csv", "metadata.json")
"""Lists that are read when they lie in a scanned folder."""


@dataclass(frozen=True)
class Row:
    """One entry of a list: its place, the picture it names, its caption and short caption if it has them."""

    place: str
    path: Path
    caption: str | None
    short: str | None


def read_list(path: Path) -> tuple[list[Row], list[str]]:
    """The entries of `path`, in order, and one sentence for each entry that could not be understood.

    Raises:
        DataError: the file as a whole cannot be read.
    """
    text, _ = read_text(path)
    rows, problems = [], []
    readers = {".jsonl": _json_lines, ".csv": _csv_rows, ".json": _json_index}
    for place, entry in readers[path.suffix.lower()](path, text):
        named = _first(entry, PATH_KEYS) if isinstance(entry, Mapping) else None
        if isinstance(entry, DataError):
            problems.append(str(entry))
        elif not named:
            problems.append(f"{place}: no picture is named; expected one of the keys {', '.join(PATH_KEYS)}.")
        else:
            caption, short = _first(entry, CAPTION_KEYS), _first(entry, ("caption_short",))
            rows.append(Row(place, _locate(path.parent, named), caption, short))
    return rows, problems


def _json_lines(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            place = f"{show(path)}, line {number}"
            try:
                yield place, json.loads(line)
            except ValueError as error:
                yield (
                    place,
                    DataError(f"{place}: not valid JSON ({_short(error)}); expected one object per line."),
                )


def _csv_rows(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    try:
        for entry in reader:
            yield f"{show(path)}, line {reader.line_num}", entry
    except csv.Error as error:
        raise DataError(f"{show(path)}, line {reader.line_num}: not valid CSV ({error}).") from error


def _json_index(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    try:
        index = json.loads(text)
    except ValueError as error:
        raise DataError(
            f"{show(path)}: not valid JSON ({_short(error)}); expected a list of pictures."
        ) from error
    if isinstance(index, list):
        yield from ((f"{show(path)}, entry {number}", entry) for number, entry in enumerate(index, start=1))
    elif isinstance(index, Mapping):
        for name, entry in index.items():
            fields = entry if isinstance(entry, Mapping) else {"caption": entry}
            yield f"{show(path)}, key {name!r}", {**fields, "file_name": name}
    else:
        raise DataError(f"{show(path)}: found a bare {type(index).__name__}; expected a list of pictures.")


def _first(entry: Mapping[str, Any], keys: tuple[str, ...]) -> str | None:
    return next(
        (value.strip() for key in keys if isinstance(value := entry.get(key), str) and value.strip()), None
    )


def _locate(folder: Path, name: str) -> Path:
    """The file called `name`: as written, or with the separators of a list that was saved on Windows."""
    spellings = (folder / name, Path(name), folder / name.replace("\\", "/"))
    return next((path for path in spellings if path.is_file()), folder / name)


def _short(error: ValueError) -> str:
    return str(error).partition(":")[0]
