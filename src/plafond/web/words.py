"""What the page says, in the reader's language: English in the code, translations in ``messages/<language>.po``."""

from __future__ import annotations

from datetime import timedelta
from functools import cache
from time import time

from babel.dates import format_timedelta
from babel.numbers import format_decimal, format_percent

from plafond.language.said import Value
from plafond.language.speech import SOURCE, catalogue, speaker
from plafond.memory.gpus import GIB, MIB

LANGUAGES = {"en": "English", "fr": "Français"}


def N_(sentence: str) -> str:
    """Mark a sentence for translation; it is translated when it is shown."""
    return sentence


class Words:
    """Puts sentences, sizes and times into one language.

    Args:
        language: ``en`` or ``fr``.
    """

    def __init__(self, language: str):
        self.language = language
        self._known = catalogue(language, "plafond.web")
        self._speak = speaker(language)

    def __call__(self, sentence: str, /, **values: object) -> str:
        """A sentence with its values in place."""
        text = self._known.get(sentence, sentence)
        return text.format(**values) if values else text

    def said(self, value: Value) -> str:
        """A sentence that comes as data, as that of an error."""
        return self._speak(value)

    def size(self, count: int | float) -> str:
        """Bytes as GiB, or as MiB where that says more."""
        if abs(count) >= GIB / 10 or count == 0:
            return self(
                N_("{number} GiB"), number=self.number(count / GIB, "0.0" if count < 100 * GIB else "0")
            )
        return self(
            N_("{number} MiB"), number=self.number(count / MIB, "0.0" if abs(count) < 10 * MIB else "0")
        )

    def number(self, value: float, form: str = "0.0") -> str:
        """A number in a form of Unicode's, as ``0.0``."""
        return str(format_decimal(value, form, locale=self.language))

    def percent(self, share: float) -> str:
        """A share of 1 in percent."""
        return str(format_percent(share, "0 %" if self.language == "fr" else "0%", locale=self.language))

    def duration(self, seconds: float) -> str:
        """A duration in one or two units."""
        minutes, rest = divmod(round(max(0.0, seconds)), 60)
        hours, minutes = divmod(minutes, 60)
        if hours:
            return f"{hours} h {minutes:02} min"
        return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"

    def ago(self, then: float) -> str:
        """How long ago a moment is, in seconds since 1970."""
        passed = timedelta(seconds=min(-1.0, then - time()))
        return str(format_timedelta(passed, add_direction=True, locale=self.language))


@cache
def words(language: str) -> Words:
    """The words of a language."""
    return Words(language)


def language_for(cookie: str | None, accepted: str | None) -> str:
    """The language that was chosen on the page, else the first of the browser's that there is, else English."""
    if cookie in LANGUAGES:
        return str(cookie)
    for part in (accepted or "").split(","):
        name = part.partition(";")[0].strip().lower().partition("-")[0]
        if name in LANGUAGES:
            return name
    return SOURCE
