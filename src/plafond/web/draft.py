"""A job that is being edited: its text is all there is, and a form writes into the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plafond.errors import JobError, PlafondError
from plafond.families import family_for
from plafond.families._contract import Family
from plafond.job.blocks import add_item, put, remove_item
from plafond.job.document import DocumentError
from plafond.job.editing import EditError, edit, set_value
from plafond.job.keys import SECTIONS
from plafond.job.reading import job_of
from plafond.job.schema import Job
from plafond.job.source import key_of
from plafond.job.text import parse
from plafond.language.said import N_, Said

Check = Callable[[Job], None]


@dataclass(frozen=True)
class Problem:
    """Why a job cannot be run as written.

    Args:
        message: one sentence without the place.
        line: 1-based line of the text.
        key: dotted key inside of its process.
    """

    message: Said
    line: int | None
    key: str | None

    @property
    def placed(self) -> Said:
        """The sentence with its line and key."""
        return JobError(self.message, line=self.line, key=self.key).said


class Draft:
    """The text of a job, and what it says.

    Args:
        text: the job file.
        suffix: tells YAML from JSON.
        check: raises a JobError where the job asks for what this page may not do.
        overrides: ``--set`` of the command line that a job of the terminal came with.

    Attributes:
        data: the file as plain data; None as long as it cannot be read at all.
        job: the job as it would be run; None as long as something is wrong with it.
        problems: what is wrong, in the order of the file.
        process: index of the process that the form shows.
    """

    def __init__(
        self, text: str, suffix: str = ".yaml", *, check: Check | None = None, overrides: Sequence[str] = ()
    ):
        self.suffix, self.process = suffix, 0
        self._check, self._overrides = check, tuple(overrides)
        self.write(text)

    def write(self, text: str) -> None:
        """Take another text, whatever it says."""
        self.text = text
        self.job: Job | None = None
        self.problems: tuple[Problem, ...] = ()
        self.data: dict[str, Any] | None = None
        file = Path(f"job{self.suffix}")
        try:
            data = parse(text, file, {}).data
        except DocumentError as error:
            key = key_of(error.path) if error.path else None
            self.problems = (Problem(error.said, error.line, key),)
            return
        if isinstance(data, dict):
            self.data = data
        try:
            job = job_of(text, file, overrides=self._overrides)
            if self._check is not None:
                self._check(job)
        except PlafondError as error:
            self.problems = tuple(map(_problem, (error, *error.others)))
            return
        self.job = job

    @property
    def problem(self) -> Problem | None:
        """The first thing that is wrong."""
        return self.problems[0] if self.problems else None

    @property
    def processes(self) -> int:
        """How many processes the file has."""
        found = _at(self.data, ("config", "process"))
        return len(found) if isinstance(found, list) else 0

    @property
    def name(self) -> str:
        """The job's name as it stands there."""
        return str(_at(self.data, ("config", "name")) or "")

    @property
    def family(self) -> Family | None:
        """The family of the model, when it is known."""
        if self.data is None:
            return None
        try:
            return family_for(str(self.value("model.arch")).partition(":")[0])
        except JobError:
            return None

    def raw(self, key: str) -> Any:
        """What stands in the file at a key of the process; None when nothing does."""
        return _at(self.data, ("config", "process", self.process, *_parts(key)))

    def value(self, key: str) -> Any:
        """What holds at a key: as the job would be run or, while something is wrong with it, as written."""
        if self.job is not None and self.process < len(self.job.processes):
            return _found(self.job.processes[self.process], _parts(key))
        written = self.raw(key)
        return default_of(key) if written is None else written

    def set(self, key: str, value: Any) -> None:
        """Write a value at a key of the process, by whichever name the file has for it.

        Raises:
            EditError: the file does not let itself be changed there.
        """
        path = self._path(key)
        try:
            text = edit(self.text, self.process, {key: value}, suffix=self.suffix)
        except EditError:
            text = put(self.text, path, value, suffix=self.suffix)
        self.write(text)

    def rename(self, name: str) -> None:
        """Give the job another name.

        Raises:
            EditError: as for `set`.
        """
        self.write(set_value(self.text, ("config", "name"), name, suffix=self.suffix))

    def replace(self, key: str, value: Any) -> None:
        """Write a list or mapping at a key, exactly under this name."""
        self.write(put(self.text, self._path(key), value, suffix=self.suffix))

    def add(self, key: str, value: Any) -> None:
        """Put an item at the end of a list."""
        self.write(add_item(self.text, self._path(key), value, suffix=self.suffix))

    def remove(self, key: str, index: int) -> None:
        """Take an item out of a list."""
        self.write(remove_item(self.text, self._path(key), index, suffix=self.suffix))

    def _path(self, key: str) -> tuple[str | int, ...]:
        if self.raw("") is None:
            raise EditError(N_("the text cannot be read as a job; mend it first"))
        return ("config", "process", self.process, *_parts(key))


def _problem(error: PlafondError) -> Problem:
    if isinstance(error, JobError):
        return Problem(error.message, error.line, error.key)
    return Problem(error.said, None, None)  # a setting of the command line that the job came with


def _parts(key: str) -> list[str | int]:
    return [int(part) if part.isdecimal() else part for part in key.split(".") if part]


def _at(data: Any, path: Sequence[str | int]) -> Any:
    for part in path:
        if isinstance(data, dict):
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            return None
    return data


def _found(node: Any, parts: Sequence[str | int]) -> Any:
    for part in parts:
        if isinstance(node, dict):
            node = node.get(part)
        elif isinstance(part, int):
            node = node[part] if isinstance(node, tuple) and part < len(node) else None
        else:
            node = getattr(node, part, None)
    return list(node) if isinstance(node, tuple) else node


def section_of(key: str) -> tuple[str, str]:
    """The section that a key belongs to, and its name in it: ``datasets.0.fps`` to ``datasets`` and ``fps``."""
    *before, name = [part for part in key.split(".") if not part.isdecimal()]
    return ".".join(before), name


def default_of(key: str) -> Any:
    """What holds at a key that a file does not have."""
    section, name = section_of(key)
    keys = SECTIONS.get(section)
    field = keys.model.model_fields.get(name) if keys is not None else None
    if field is None or field.is_required():
        return None
    found = field.get_default()
    return list(found) if isinstance(found, tuple) else found


def help_of(key: str) -> str:
    """What the schema says about a key."""
    section, name = section_of(key)
    keys = SECTIONS.get(section)
    if keys is None:
        return ""
    if name in keys.model.model_fields:
        return keys.model.model_fields[name].description or ""
    declared = keys.model.inputs.get(name)
    return declared.description if declared is not None else ""
