"""A log as bytes: found by plain search, so that a log of any size or encoding is read in seconds.

Progress bars write over their own line with carriage returns; each state of a bar counts as a line of text here, while
line numbers are those of an editor.
"""

from __future__ import annotations

import codecs
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

REACH = 4000
"""Bytes of a line that are looked at on either side of what was found in it."""

QUOTED = 400
"""Characters of a line that are quoted."""

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_FRAME = re.compile(r"[│║┃]|[ \t\n]+")


@dataclass(frozen=True, slots=True)
class Line:
    """A line, or one state of a progress bar.

    Args:
        number: 1-based, as an editor counts.
        start: offset of its first byte.
        text: without colours and control characters.
    """

    number: int
    start: int
    text: str

    @property
    def quoted(self) -> str:
        """The text, cut where it is long."""
        text = self.text.strip()
        return text if len(text) <= QUOTED else text[: QUOTED - 1] + "…"


class Log:
    """A log file's bytes."""

    def __init__(self, data: bytes):
        for mark, name in ((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")):
            if data.startswith(mark):  # what PowerShell's redirection writes
                data = data.decode(name, errors="replace").encode()
        self.data = data.replace(b"\r\n", b"\n")
        self._flat = self.data.replace(b"\r", b"\n")
        self.lower = self._flat.lower()

    def __len__(self) -> int:
        return len(self.data)

    @cached_property
    def _starts(self) -> list[int]:
        return list(accumulate((len(line) + 1 for line in self.data.split(b"\n")), initial=0))

    def number(self, offset: int) -> int:
        """The number of the line that holds a byte."""
        return bisect_right(self._starts, offset)

    def line(self, offset: int) -> Line:
        """The line that holds a byte."""
        start = self._flat.rfind(b"\n", max(0, offset - REACH), offset)
        start = max(0, offset - REACH) if start < 0 else start + 1
        end = self._flat.find(b"\n", offset, offset + REACH)
        end = min(len(self._flat), offset + REACH) if end < 0 else end
        return Line(self.number(offset), start, _clean(self._flat[start:end]))

    def find(self, needle: bytes, start: int = 0, end: int | None = None) -> Iterator[int]:
        """Offsets of a lower-case needle, at most one of each line."""
        offset = self.lower.find(needle, start, end)
        while offset >= 0:
            yield offset
            following = self._flat.find(b"\n", offset)
            if following < 0:
                return
            offset = self.lower.find(needle, following, end)

    def last(self, needle: bytes, before: int | None = None) -> int:
        """Offset of the last lower-case needle, -1 when there is none."""
        return self.lower.rfind(needle, 0, len(self.lower) if before is None else before)

    def around(self, offset: int, before: int, after: int) -> str:
        """The text around a byte as it stands, line by line."""
        return _clean(self._flat[max(0, offset - before) : offset + after])

    def passage(self, offset: int, length: int = 1500) -> str:
        """A message from a byte on, with what a framed traceback broke into lines put together again."""
        return _FRAME.sub(" ", _clean(self._flat[offset : offset + length]))

    def tail(self, count: int) -> list[Line]:
        """The last lines that hold anything."""
        found: list[Line] = []
        offset = len(self._flat) - 1
        while offset >= 0 and len(found) < count:
            line = self.line(offset)
            if line.text.strip():
                found.append(line)
            offset = line.start - 2 if line.start > 1 else -1
        return found[::-1]


def _clean(data: bytes) -> str:
    return _CONTROL.sub("", _ESCAPE.sub("", data.decode("utf-8", errors="replace")))
