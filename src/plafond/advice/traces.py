"""Tracebacks in a log, whoever printed them: Python, rich, a notebook, several processes at once, a launcher."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from plafond.advice.log import Line, Log

HEAD = b"traceback (most recent call last)"

MOST = 12
"""Tracebacks that are looked at, from the end."""

LONGEST = 400
"""Lines of a traceback; an exception in a deep model has a few hundred."""

REACH = 200_000
"""Bytes of it."""

TAIL = 30
"""Last lines in which an exception without a traceback counts."""

_TAG = re.compile(r"\[?(?:rank|default) ?(\d+)\]?:")
_FRAME = re.compile(
    r"\s*(?:File [\"/<]|❱|│|╭|Cell In\s?\[|<ipython-input|-+> ?\d+ )|[\w./\\:-]+\.py in \w+\(", re.ASCII
)
_NAMED = re.compile(r"(?:[A-Za-z_]\w*\.)*\w*(?:[Ee]rror|Exception|Interrupt|Exit)(?::|$)")
_ANY = re.compile(r"(?:[A-Za-z_][\w.]*\.)?(?:[A-Z]\w*|\w*error)(?::\s|:?$)")
_LAUNCHER = re.compile(
    r"(?:\w+\.)*(?:(?:CalledProcessError|ChildFailedError|SystemExit|SubprocessError)\b|"
    r"\w+: .*(?:failed|exited) with (?:exit |return )?(?:code|status) )"
)


@dataclass(frozen=True, slots=True)
class Trace:
    """A traceback.

    Args:
        start: offset of its head.
        tag: number of the process that printed it, where several print.
        lines: offset and text of its lines, its exception's among them.
        error: the line that names the exception; None where it is not there.
    """

    start: int
    tag: str | None
    lines: tuple[tuple[int, str], ...]
    error: Line | None

    @property
    def is_launchers(self) -> bool:
        """Whether it only says that another process failed."""
        return self.error is not None and _LAUNCHER.match(self.error.body) is not None


def tag_of(text: str) -> str | None:
    """The number of the process that printed a line, where it says."""
    match = _TAG.search(text[:80])
    return None if match is None else match[1]


def tracebacks(log: Log, before: int | None = None, most: int = MOST) -> Iterator[Trace]:
    """The tracebacks that begin before a place, the newest first."""
    head = log.last(HEAD, before)
    for _ in range(most):
        if head < 0:
            return
        yield traceback(log, head)
        head = log.last(HEAD, log.line(head).start)


def traceback(log: Log, head: int) -> Trace:
    """The traceback whose head stands at a place."""
    first = log.line(head)
    tag, frames, plain = tag_of(first.text), 0, False
    found: list[tuple[int, str]] = []
    for line in log.lines(head, head + REACH):
        if line.start <= first.start or tag != tag_of(line.text):
            continue
        body = line.body
        if HEAD.decode() in body.lower():
            if frames:
                break
            continue  # two streams in one file say it twice
        found.append((line.start, body))
        if _FRAME.match(body):
            frames += 1
            plain = plain or body.startswith(("File", "Cell", "<", "-"))  # not indented: names alone tell
        elif frames and _ends(body, plain):
            return Trace(first.start, tag, tuple(found), line)
        if len(found) >= LONGEST:
            break
    return Trace(first.start, tag, tuple(found), None)


def _ends(body: str, plain: bool) -> bool:
    if "%|" in body:
        return False
    return (_NAMED if plain else _ANY).match(body) is not None or _NAMED.match(body) is not None


def frames_before(log: Log, line: Line) -> tuple[tuple[int, str], ...]:
    """The frames right before a line whose head was cut off."""
    above = [(one.start, one.body) for one in log.lines(max(0, line.start - 20_000), line.start - 1)]
    first = len(above)
    for index in range(len(above) - 1, -1, -1):
        body = above[index][1]
        if _FRAME.match(body):
            first = index
        elif not body[:1].isspace() and not (index and _FRAME.match(above[index - 1][1])):
            break
    return tuple(above[first:])


def exceptions(log: Log) -> list[Trace]:
    """What ended tracebacks, the newest last; without any, the exceptions among the last lines."""
    found = [trace for trace in tracebacks(log) if trace.error is not None][::-1]
    if found or log.last(HEAD) >= 0:
        return found
    newest = log.bars[-1][0] if log.bars else -1
    ends = [line for line in log.tail(TAIL) if line.start > newest and _NAMED.match(line.body)]
    return [Trace(line.start, tag_of(line.text), (), line) for line in ends]
