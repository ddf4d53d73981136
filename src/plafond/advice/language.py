"""Sentences in the reader's language: English in the code, translations in ``messages/<language>.po``.

A sentence is made where it is known what to say, and put into words where it is known for whom.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from io import BytesIO

from babel import Locale, UnknownLocaleError, default_locale
from babel.messages.pofile import read_po
from babel.numbers import format_decimal

from plafond.errors import UsageError
from plafond.memory.gpus import GIB, MIB

SOURCE = "en"


def N_(sentence: str) -> str:
    """Mark a sentence for translation; it is translated when it is shown."""
    return sentence


UNITS = {GIB: N_("{number} GiB"), MIB: N_("{number} MiB")}


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes in a sentence."""

    bytes: int


@dataclass(frozen=True, slots=True)
class Said:
    """A sentence with its values: plain text, numbers, sizes and further sentences."""

    text: str
    values: Mapping[str, str | int | float | Size | Said] = field(default_factory=dict)


Speak = Callable[[Said], str]


def languages() -> tuple[str, ...]:
    """What there is, English first."""
    folder = files("plafond.advice") / "messages"
    others = (entry.name.removesuffix(".po") for entry in folder.iterdir() if entry.name.endswith(".po"))
    return (SOURCE, *sorted(others))


def choose(wanted: str | None) -> str:
    """The language of ``--lang``, else the environment's, else English.

    Raises:
        UsageError: `wanted` is not there.
    """
    if wanted is not None:
        if wanted not in languages():
            raise UsageError(f"--lang {wanted}: expected one of {', '.join(languages())}")
        return wanted
    try:
        found = Locale.parse(default_locale("LC_MESSAGES") or SOURCE).language
    except (UnknownLocaleError, ValueError):
        return SOURCE
    return found if found in languages() else SOURCE


@cache
def catalogue(language: str, package: str = "plafond.advice") -> dict[str, str]:
    """Translations of a package's sentences by the English ones; empty for English."""
    if language == SOURCE:
        return {}
    data = (files(package) / "messages" / f"{language}.po").read_bytes()
    read = read_po(BytesIO(data), locale=language)
    return {str(message.id): str(message.string) for message in read if message.id and message.string}


def speaker(language: str) -> Speak:
    """A function that puts sentences into a language."""
    known = catalogue(language)

    def put(value: str | int | float | Size | Said) -> str:
        match value:
            case Said():
                return speak(value)
            case Size():
                return _size(value.bytes)
            case float():
                return str(format_decimal(value, "0.0" if value < 100 else "0", locale=language))
            case _:
                return str(value)

    def _size(size: int) -> str:
        unit = GIB if size >= GIB / 10 or size == 0 else MIB
        number = format_decimal(size / unit, "0.0", locale=language)
        return known.get(UNITS[unit], UNITS[unit]).format(number=number)

    def speak(said: Said) -> str:
        return known.get(said.text, said.text).format(
            **{name: put(value) for name, value in said.values.items()}
        )

    return speak
