"""How values and paths from a job file are quoted in messages, and what the nearest valid thing is."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel

from plafond.language.said import N_, Said

_SHOWN = 60


def shown(value: object) -> str | Said:
    """A value as it may be quoted in a sentence."""
    if isinstance(value, (BaseModel, dict)):
        return Said(N_("a mapping"))
    if isinstance(value, (list, tuple)):
        return Said(N_("a list") if value else N_("an empty list"))
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return Said(N_("nothing"))
    if isinstance(value, str):
        text = printable(" ".join(value.split()))
        return f'"{text[: _SHOWN - 1]}…"' if len(text) > _SHOWN else f'"{text}"'
    text = repr(value)
    return f"{text[: _SHOWN - 1]}…" if len(text) > _SHOWN else text


def printable(text: str) -> str:
    """Write control characters as escapes: a job file may not steer the terminal that shows a message."""
    return "".join(mark if mark.isprintable() else ascii(mark)[1:-1] for mark in text)


def safe(sentence: Said) -> Said:
    """A sentence whose values are printable."""
    return sentence.rewritten(printable)


def nearest(word: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the name most like `word`, or None when none is close."""
    found = difflib.get_close_matches(word.lower(), list(names), n=1, cutoff=cutoff)
    return found[0] if found else None


def hinted(sentence: Said, near: str | Path | None) -> Said:
    """A sentence about a name that is not known, and the one that may be meant."""
    return Said(N_("{text}; did you mean {name}?"), {"text": sentence, "name": near}) if near else sentence


def exists(path: Path) -> bool:
    """Whether there is such a file or folder; no path is too odd to ask."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def entries(folder: Path) -> list[Path]:
    """What is in a folder, by name; nothing when it cannot be listed."""
    try:
        return sorted(folder.iterdir())
    except (OSError, ValueError):
        return []


def expanded(text: str) -> Path:
    """A path with `~` replaced; an unknown user's home stays as it is, and does not exist."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)
