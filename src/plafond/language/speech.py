"""Languages: English in the code, translations in ``messages/<language>.po``."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from io import BytesIO

from babel import Locale, UnknownLocaleError, default_locale
from babel.messages.pofile import read_po
from babel.numbers import format_decimal, get_decimal_symbol

from plafond.errors import UsageError
from plafond.language.said import N_, ExactSize, Inside, Number, Percent, Said, Size, Speak, Value
from plafond.memory.gpus import GIB, KIB, MIB, gib

SOURCE = "en"
UNITS = {"GiB": N_("{number} GiB"), "MiB": N_("{number} MiB"), "KiB": N_("{number} KiB")}
SIZES = {"GiB": GIB, "MiB": MIB, "KiB": KIB}
PERCENT = N_("{number}%")
_OF_MESSAGES = ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG")
# before LC_CTYPE, which says nothing of language: Python sets it where the wanted locale is not installed


def languages() -> tuple[str, ...]:
    """What there is, English first."""
    folder = files("plafond.language") / "messages"
    others = (entry.name.removesuffix(".po") for entry in folder.iterdir() if entry.name.endswith(".po"))
    return (SOURCE, *sorted(others))


def choose(wanted: str | None) -> str:
    """The language of ``--lang``, else the environment's, else English.

    Raises:
        UsageError: `wanted` is not there.
    """
    if wanted is not None:
        if wanted not in languages():
            raise UsageError(N_("--lang {wanted}: expected one of {names}"), wanted=wanted, names=languages())
        return wanted
    try:
        found = Locale.parse(default_locale(_OF_MESSAGES) or SOURCE).language
    except (UnknownLocaleError, ValueError):
        return SOURCE
    return found if found in languages() else SOURCE


@cache
def catalogue(language: str, package: str = "plafond.language") -> dict[str, str]:
    """Translations of a package's sentences by the English ones; empty for English."""
    if language == SOURCE:
        return {}
    data = (files(package) / "messages" / f"{language}.po").read_bytes()
    read = read_po(BytesIO(data), locale=language)
    return {str(message.id): str(message.string) for message in read if message.id and message.string}


def speaker(language: str) -> Speak:
    """A function that puts sentences into a language."""
    known = catalogue(language)
    symbol = get_decimal_symbol(language)

    def speak(value: Value) -> str:
        match value:
            case Said():
                return worded(value.text, **{name: speak(one) for name, one in value.values.items()})
            case Inside():
                return speak(value.sentence).rstrip(".")
            case Size():
                # the largest unit of which it is a tenth
                fitting = (name for name, size in SIZES.items() if value.bytes >= size / 10)
                name = next(fitting, "KiB") if value.bytes else "GiB"
                number = str(format_decimal(value.bytes / SIZES[name], "0.0", locale=language))
                return worded(UNITS[name], number=number)
            case ExactSize():
                digits, name = gib(value.bytes).split(" ")
                return worded(UNITS[name], number=digits.replace(".", symbol))
            case Number():
                return f"{value.value:.{value.decimals}f}".replace(".", symbol)
            case Percent():
                return worded(PERCENT, number=f"{value.share * 100:.0f}")
            case float():
                return str(format_decimal(value, "0.0" if value < 100 else "0", locale=language))
            case tuple():
                return ", ".join(speak(one) for one in value)
            case _:
                return str(value)

    def worded(text: str, /, **values: str) -> str:
        # without values there is nothing to put in, and braces are what they are
        sentence = known.get(text, text)
        return sentence.format(**values) if values else sentence

    return speak
