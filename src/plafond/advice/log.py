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

_CLOCK = r"(?:\d{4}-\d\d-\d\d[T ])?\d\d:\d\d:\d\d(?:[.,-]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_LEVEL = r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)"
_PREFIX = re.compile(
    rf"(?: {{0,2}}(?:\[[^\]\n]{{1,60}}\]:?|\(\w+ pid=\d+[^)\n]*\)|{_LEVEL}:[\w.]+:|{_CLOCK}(?=\s)|{_LEVEL}:?(?=\s)|"
    r"(?:rank|default) ?\d+:|[\w.-]+ +\||(?:\w+ )?(?:STDERR|STDOUT|SUBPROCESS|TRAINER|stderr|stdout)(?: [FP]\b|:))"
    r"[ \t]?)+"
)
"""What programs that hand on the output of others put before each of its lines."""

_BAR = re.compile(r".*\d+/\d+ \[[^\]]*(?:it/s|s/it|s/step|examples/s)[^\]]*\](?=\S)")
"""A progress bar that something else was written behind."""


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
    def body(self) -> str:
        """The text without what a logger, a launcher, a container or a progress bar put before it."""
        start = 0
        for before in (_PREFIX, _BAR):
            if match := before.match(self.text, start):
                start = match.end()
        return self.text[start:]

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
        self.bars: list[tuple[int, bytes]] = []
        self.searched = self._sift()

    def __len__(self) -> int:
        return len(self.data)

    def _sift(self) -> bytes:
        """Set the states of the training bar apart, of which a long run has a million, and lower the rest's case."""
        kept, self._begins, self._origins = [], [], []
        names = tuple(name.strip() + b":" for name in _JOB.findall(self.data))
        offset = length = 0
        for text in self._flat.split(b"\n"):
            if (b"s/it" in text or b"it/s" in text) and _is_training(text, names):
                self.bars.append((offset, text))
                drop = text[-8:].rstrip().endswith(b"]") and b"nan" not in text
            else:
                drop = False
            if not drop:
                kept.append(text)
                self._begins.append(length)
                self._origins.append(offset)
                length += len(text) + 1
            offset += len(text) + 1
        return b"\n".join(kept).lower()

    def place(self, found: int) -> int:
        """Where a byte of `searched` stands in the log."""
        index = bisect_right(self._begins, found) - 1
        return self._origins[index] + found - self._begins[index]

    def _found(self, place: int) -> int:
        """The first byte of `searched` that does not stand before a byte of the log."""
        index = bisect_right(self._origins, place) - 1
        if index < 0:
            return 0
        end = self._begins[index + 1] if index + 1 < len(self._begins) else len(self.searched)
        return min(self._begins[index] + place - self._origins[index], end)

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

    def lines(self, start: int, end: int) -> Iterator[Line]:
        """The lines that begin between two places; a first one that is cut counts too."""
        offset = start
        for raw in self._flat[start:end].split(b"\n"):
            yield Line(self.number(offset), offset, _clean(raw[:REACH]))
            offset += len(raw) + 1

    def find(self, needle: bytes) -> Iterator[int]:
        """Offsets of a lower-case needle, at most one of each line."""
        found = self.searched.find(needle)
        while found >= 0:
            yield self.place(found)
            following = self.searched.find(b"\n", found)
            if following < 0:
                return
            found = self.searched.find(needle, following)

    def last(self, needle: bytes, before: int | None = None) -> int:
        """Offset of the last lower-case needle, -1 when there is none."""
        end = len(self.searched) if before is None else self._found(before)
        found = self.searched.rfind(needle, 0, end)
        return found if found < 0 else self.place(found)

    def part(self, start: int, end: int) -> bytes:
        """Bytes of the log in lower case, each state of a bar on a line of its own."""
        return self._flat[start:end].lower()

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


_JOB = re.compile(rb"# Running job: (.+)")


def _is_training(bar: bytes, names: tuple[bytes, ...]) -> bool:
    """Whether a progress bar is that of the training loop, maybe named after its job, and not one of many others."""
    if b"loss" in bar or b"lr:" in bar or b"lr=" in bar:
        return True
    if names and bar.lstrip().startswith(names):
        return True
    begin = bar[:14].lower().lstrip()
    return begin.startswith((b"steps:", b"step:", b"training", b"epoch")) and b" std" not in begin


def _clean(data: bytes) -> str:
    return _CONTROL.sub("", _ESCAPE.sub("", data.decode("utf-8", errors="replace")))
