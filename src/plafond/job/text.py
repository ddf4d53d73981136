"""From a path on the command line to the text of a job file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from plafond.errors import JobError
from plafond.job.document import Document, DocumentError, read_yaml
from plafond.job.json_text import read_json
from plafond.job.wording import entries, exists, hinted, nearest
from plafond.language.said import N_, Said

SUFFIXES = (".yaml", ".yml", ".json", ".jsonc")

_VARIABLE = re.compile(r"\$\{([^}\n]+)\}")
# Private characters mark the name of an unset variable until it is known whether it stands in a comment.
_UNSET = re.compile("\ue000([^\ue000]*)\ue000")


def find_file(path: Path) -> Path:
    """Return the job file: the path itself, or the name inside `config/` with any of the suffixes.

    Raises:
        JobError: there is no such file.
    """
    if exists(path):
        if path.is_dir():
            raise JobError(N_("expected a job file, found a folder"), file=path)
        return path
    if not path.is_absolute():
        for suffix in ("", *SUFFIXES):
            inside = Path("config", f"{path}{suffix}")
            if exists(inside) and inside.is_file():
                return inside
    raise JobError(hinted(Said(N_("no such file")), _near(path)), file=path)


def _near(path: Path) -> Path | None:
    # Without the suffixes: all of them look alike.
    by_stem = {entry.stem: entry for entry in entries(path.parent) if entry.suffix.lower() in SUFFIXES}
    near = nearest(path.stem, by_stem)
    return by_stem[near] if near else None


def read_text(path: Path) -> str:
    """Read a job file as UTF-8, with or without a byte-order mark.

    Raises:
        JobError: it cannot be opened or is not UTF-8.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise JobError(N_("cannot be opened: {reason}"), reason=str(error.strerror), file=path) from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        sentence = N_("expected text in UTF-8; save the file in that encoding")
        raise JobError(sentence, file=path, line=line) from None


def parse(text: str, path: Path, env: Mapping[str, str]) -> Document:
    """Replace `${VAR}` and read the text as what its file name says.

    Raises:
        DocumentError: the text cannot be read, or a variable outside a comment is not set.
    """

    def value(match: re.Match[str]) -> str:
        return env.get(match[1], f"\ue000{match[1]}\ue000")

    text = _VARIABLE.sub(value, text)
    suffix = path.suffix.lower()
    document = (
        read_json(text, comments=suffix == ".jsonc") if suffix in (".json", ".jsonc") else read_yaml(text)
    )
    _refuse_unset(document, document.data, ())
    return document


def _refuse_unset(document: Document, data: object, path: tuple[str | int, ...]) -> None:
    items: list[tuple[str | int, object]] = []
    if isinstance(data, dict):
        items = list(data.items())
    elif isinstance(data, list):
        items = list(enumerate(data))
    for key, value in items:
        for text in (key, value):
            if isinstance(text, str) and (found := _UNSET.search(text)):
                # In a key the name of the variable is all there is to show.
                place = path if text is key else (*path, key)
                line = document.lines.get((*path, key))
                raise DocumentError(
                    N_("the environment variable {name} is not set"), line, place, name=found[1]
                )
        _refuse_unset(document, value, (*path, key))
