"""Where values of a job file stand: from a path to a file, a line and a key; collects what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from plafond.errors import JobError, PlafondError, UsageError
from plafond.job.document import KeyPath
from plafond.job.wording import printable, safe
from plafond.language.said import N_, Said, Value

OVERRIDE = N_("--set {setting}: {text}")
_PROCESS_DEPTH = 3  # config, process, index


class Source:
    """One job file while it is read. Problems are collected, to be reported in the order of their lines."""

    def __init__(
        self, file: Path, lines: Mapping[KeyPath, int], overrides: Mapping[KeyPath, str] | None = None
    ):
        self.file = file
        self.lines = lines
        self.overrides = overrides or {}
        self.problems: list[tuple[int, PlafondError]] = []
        self._warnings: list[tuple[int, Said]] = []

    def line(self, path: KeyPath) -> int | None:
        """The line of a key, or of the nearest thing around it that stands in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path)

    def error(self, path: KeyPath, text: str | Said, /, **values: Value) -> PlafondError:
        """The error for one value, naming the command line when the value came from there."""
        message = safe(Said.of(text, values))
        for end in range(len(path), 0, -1):
            if path[:end] in self.overrides:
                return UsageError(OVERRIDE, setting=self.overrides[path[:end]], text=message)
        return JobError(message, file=self.file, line=self.line(path), key=key_of(path))

    def problem(self, path: KeyPath, text: str | Said, /, **values: Value) -> None:
        """Note that a value is wrong."""
        self.problems.append((self.line(path) or 0, self.error(path, text, **values)))

    def warn(self, path: KeyPath, text: str | Said, /, **values: Value) -> None:
        """Note something that does not stop the job."""
        self._warnings.append((self.line(path) or 0, self.error(path, text, **values).said))

    @property
    def warnings(self) -> tuple[Said, ...]:
        """The warnings in the order of the file."""
        return tuple(text for _, text in sorted(self._warnings, key=lambda warning: warning[0]))

    def fail(self, path: KeyPath, text: str | Said, /, **values: Value) -> NoReturn:
        """Stop at a problem that leaves nothing to read on with."""
        self.problem(path, text, **values)
        raise self.first_problem()

    def raise_first(self) -> None:
        """Raise the problem that comes first in the file, if there is one."""
        if self.problems:
            raise self.first_problem()

    def first_problem(self) -> PlafondError:
        """The problem that comes first in the file, and with it the others."""
        found = sorted(self.problems, key=lambda problem: problem[0])
        # each kind of value that a key may have can object with the same sentence
        first, *others = {str(error): error for _, error in found}.values()
        first.others = tuple(others)
        return first


def key_of(path: KeyPath) -> str | None:
    """The dotted key of a path as users write it, None for the whole file."""
    return dotted(path) or None


def dotted(path: KeyPath) -> str:
    """The dotted key of a path: inside a process, without the way to it."""
    if path[:2] == ("config", "process") and len(path) > _PROCESS_DEPTH:
        path = path[_PROCESS_DEPTH:]
    return printable(".".join(str(part) for part in path))
