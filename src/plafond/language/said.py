"""Sentences as data: made where it is known what to say, put into words where it is known for whom."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TypeAlias


def N_(sentence: str) -> str:
    """Mark a sentence for translation; it is translated when it is shown."""
    return sentence


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes, roughly: with one decimal."""

    bytes: int


@dataclass(frozen=True, slots=True)
class ExactSize:
    """Bytes as `plafond.memory.gpus.gib` writes them: GiB with two decimals, MiB below a tenth of one."""

    bytes: int


@dataclass(frozen=True, slots=True)
class Number:
    """A number with so many decimals."""

    value: float
    decimals: int


@dataclass(frozen=True, slots=True)
class Percent:
    """A part of one, as whole percent."""

    share: float


@dataclass(frozen=True, slots=True)
class Said:
    """A sentence with its values: plain text, numbers, sizes and further sentences; of several, a list with commas."""

    text: str
    values: Mapping[str, Value] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str | Said, values: Mapping[str, Value]) -> Said:
        """A sentence of its text and its values; one that is made already stays as it is."""
        return text if isinstance(text, Said) else cls(text, values)

    def rewritten(self, change: Callable[[str], str]) -> Said:
        """The same sentence with each text that stands in it changed, however deep."""
        return Said(self.text, {name: _rewritten(value, change) for name, value in self.values.items()})

    def __str__(self) -> str:
        """The sentence in English, for programs; reports are told a language."""
        from plafond.language.speech import SOURCE, speaker

        return speaker(SOURCE)(self)


@dataclass(frozen=True, slots=True)
class Inside:
    """A sentence that stands inside of another one: without its full stop."""

    sentence: Said


Value: TypeAlias = (
    str | int | float | Path | Size | ExactSize | Number | Percent | Said | Inside | tuple["Value", ...]
)
Speak: TypeAlias = Callable[[Value], str]
"""Puts a sentence, or what may stand in one, into the words of one language."""


class SaidError(Exception):
    """An error that says in every language what is wrong; as a text, in English.

    Args:
        text: the sentence.
        values: what stands in it.
    """

    def __init__(self, text: str | Said, /, **values: Value):
        self.said = Said.of(text, values)
        super().__init__(self.said)

    def __str__(self) -> str:
        return str(self.said)


WORDS = N_("{words}")
"""The sentence of what comes as words from elsewhere."""


def all_of(parts: Sequence[Value]) -> Value:
    """One value for several, with "and" between them."""
    return _joined(N_("{some} and {more}"), parts)


def listed(parts: Sequence[Value]) -> Value:
    """One value for several, with semicolons between them."""
    return _joined(N_("{some}; {more}"), parts)


def few(parts: Sequence[Value], most: int) -> Value:
    """One value for several: the first ones, with commas between them, and how many more there are."""
    named, more = tuple(parts[:most]), len(parts) - most
    return Said(N_("{names} and {count} more"), {"names": named, "count": more}) if more > 0 else named


def _rewritten(value: Value, change: Callable[[str], str]) -> Value:
    match value:
        case Said():
            return value.rewritten(change)
        case Inside():
            return Inside(value.sentence.rewritten(change))
        case tuple():
            return tuple(_rewritten(part, change) for part in value)
        case str() | Path():
            return change(str(value))
        case _:
            return value


def _joined(text: str, parts: Sequence[Value]) -> Value:
    return reduce(lambda some, more: Said(text, {"some": some, "more": more}), parts) if parts else ""
