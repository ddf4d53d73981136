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
from plafond.language.said import N_, Said, Value

PATH_KEYS = ("file_name", "image_path", "image", "path")
CAPTION_KEYS = ("caption", "text", "prompt")
LIST_EXTENSIONS = frozenset({".jsonl", ".csv", ".json"})
LIST_NAMES = ("metadata.jsonl", "metadata.csv", "metadata.json")
"""Lists that are read when they lie in a scanned folder."""

LINE = N_("line {number}")


@dataclass(frozen=True)
class Row:
    """One entry of a list: its place, the picture it names, its caption and short caption if it has them."""

    place: Said
    path: Path
    caption: str | None
    short: str | None


def read_list(path: Path) -> tuple[list[Row], list[Said]]:
    """The entries of `path`, in order, and one sentence for each entry that could not be understood.

    Raises:
        DataError: the file as a whole cannot be read.
    """
    text, _ = read_text(path)
    rows: list[Row] = []
    problems: list[Said] = []
    readers = {".jsonl": _json_lines, ".csv": _csv_rows, ".json": _json_index}
    for place, entry in readers[path.suffix.lower()](path, text):
        named = _first(entry, PATH_KEYS) if isinstance(entry, Mapping) else None
        if isinstance(entry, DataError):
            problems.append(entry.said)
        elif not named:
            text = N_("{place}: no picture is named; expected one of the keys {keys}.")
            problems.append(Said(text, {"place": place, "keys": PATH_KEYS}))
        else:
            caption, short = _first(entry, CAPTION_KEYS), _first(entry, ("caption_short",))
            rows.append(Row(place, _locate(path.parent, named), caption, short))
    return rows, problems


def _json_lines(path: Path, text: str) -> Iterator[tuple[Said, Any]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            place = _place(path, LINE, number=number)
            try:
                yield place, json.loads(line)
            except ValueError as error:
                text = N_("{place}: not valid JSON ({reason}); expected one object per line.")
                yield place, DataError(text, place=place, reason=_short(error))


def _csv_rows(path: Path, text: str) -> Iterator[tuple[Said, Any]]:
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    try:
        for entry in reader:
            yield _place(path, LINE, number=reader.line_num), entry
    except csv.Error as error:
        place = _place(path, LINE, number=reader.line_num)
        raise DataError(N_("{place}: not valid CSV ({reason})."), place=place, reason=str(error)) from error


def _json_index(path: Path, text: str) -> Iterator[tuple[Said, Any]]:
    try:
        index = json.loads(text)
    except ValueError as error:
        raise DataError(
            N_("{path}: not valid JSON ({reason}); expected a list of pictures."),
            path=show(path),
            reason=_short(error),
        ) from error
    if isinstance(index, list):
        for number, entry in enumerate(index, start=1):
            yield _place(path, N_("entry {number}"), number=number), entry
    elif isinstance(index, Mapping):
        for name, entry in index.items():
            fields = entry if isinstance(entry, Mapping) else {"caption": entry}
            yield _place(path, N_("key {name}"), name=repr(name)), {**fields, "file_name": name}
    else:
        raise DataError(
            N_("{path}: found a bare {type}; expected a list of pictures."),
            path=show(path),
            type=type(index).__name__,
        )


def _place(path: Path, text: str, **values: Value) -> Said:
    return Said(N_("{file}, {line}"), {"file": show(path), "line": Said(text, values)})


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
