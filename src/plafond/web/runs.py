"""What a job's runs have left in their folders, for the page: metrics, previews, files, log."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plafond.jobs.queue import Where
from plafond.jobs.run import RunFiles
from plafond.jobs.store import Entry
from plafond.language.said import N_
from plafond.training.run_folder import RunFolder, in_order_of_time
from plafond.web.asking import Question
from plafond.web.datasets import NoSuchError
from plafond.web.places import inside

MOST_POINTS = 2000
"""Points of a curve; more cannot be told apart on a screen."""

LOG_TAIL = 200_000
"""Bytes of a log that are shown."""

HIDDEN = re.compile(r"\.|.*\.(tmp|lock)$")
PREVIEW = re.compile(r"\d+__(\d{9})_(\d+)\.\w+")


@dataclass(frozen=True)
class Sample:
    """One preview.

    Args:
        step: after how many steps.
        index: of its prompt.
        file: its name in the folder of previews.
    """

    step: int
    index: int
    file: str


@dataclass(frozen=True)
class Listed:
    """One file of a run.

    Args:
        name: below the run folder.
        bytes: its size.
        modified: seconds since 1970.
    """

    name: str
    bytes: int
    modified: float


def folder_of(entry: Entry, process: int = 0) -> RunFolder:
    """The run folder of one process of a job.

    Raises:
        NoSuchError: the job has fewer processes.
    """
    if not 0 <= process < len(entry.run_folders):
        raise NoSuchError(N_("job {number} has no process {process}"), number=entry.id, process=process)
    path = Path(entry.run_folders[process])
    return RunFolder(path.parent, path.name)


def metrics(
    entry: Entry, process: int = 0, *, after: int = 0, most: int = MOST_POINTS
) -> list[dict[str, Any]]:
    """Lines of the run's metrics after a step, thinned out evenly where there are too many; the last one is always
    there, and so is every line of a step that was not applied."""
    rows = [row for row in folder_of(entry, process).read_metrics() if row.get("step", 0) > after]
    if len(rows) <= most:
        return rows
    stride = -(-len(rows) // most)
    last = len(rows) - 1
    return [
        row
        for place, row in enumerate(rows)
        if place % stride == 0 or place == last or not row.get("applied", True)
    ]


def recoveries(entry: Entry, process: int = 0) -> dict[str, Any]:
    """By bucket, what a run has learnt from running out of memory."""
    path = folder_of(entry, process).path / "recovered.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def samples(entry: Entry, process: int = 0) -> list[Sample]:
    """The newest preview of every prompt and step."""
    folder = folder_of(entry, process)
    return [
        Sample(step, index, path.name)
        for step, row in sorted(folder.previews().items())
        for index, path in sorted(row.items())
    ]


def sample_path(entry: Entry, file: str, process: int = 0) -> Path:
    """A preview's file.

    Raises:
        NoSuchError: there is none of that name.
    """
    folder = folder_of(entry, process)
    if PREVIEW.fullmatch(file) is None or not (path := inside(folder.samples, file)).is_file():
        raise NoSuchError(N_("there is no preview {file}"), file=repr(file))
    return path


def files(entry: Entry, process: int = 0) -> list[Listed]:
    """What can be downloaded: the weights first, newest first; states that only a resumed run reads are left out."""
    root = folder_of(entry, process).path
    found = []
    for path in root.rglob("*") if root.is_dir() else ():
        name = path.relative_to(root).as_posix()
        if not path.is_file() or name.startswith("resume/") or any(map(HIDDEN.match, name.split("/"))):
            continue
        stat = path.stat()
        found.append(Listed(name, stat.st_size, stat.st_mtime))
    return sorted(found, key=lambda one: (not one.name.endswith(".safetensors"), -one.modified, one.name))


def file_path(entry: Entry, name: str, process: int = 0) -> Path:
    """A file to download.

    Raises:
        NoSuchError: it is not there, or not to be had.
        OutsideError: the name leads elsewhere.
    """
    root = folder_of(entry, process).path
    path = inside(root, name)
    if not path.is_file() or name.startswith("resume/") or any(map(HIDDEN.match, name.split("/"))):
        raise NoSuchError(N_("there is no file {name} in this run"), name=repr(name))
    return path


def log(home_run: Path, entry: Entry, process: int = 0, *, offset: int = 0) -> tuple[str, int]:
    """The run's log from an offset on, or its last part, and the offset after it.

    Before a run has a log of its own, and after it, what its command printed stands in.
    """
    path = folder_of(entry, process).log
    if not path.is_file():
        path = RunFiles(home_run).output
    try:
        size = path.stat().st_size
        start = offset if 0 < offset <= size else max(0, size - LOG_TAIL)
        with path.open("rb") as file:
            file.seek(start)
            data = file.read(LOG_TAIL)
    except OSError:
        return "", 0
    return data.decode("utf-8", errors="replace"), start + len(data)


def whole_log(home_run: Path, entry: Entry) -> str:
    """Everything that a job's runs and commands have said, for a diagnosis."""
    parts = in_order_of_time(folder_of(entry, process).log for process in range(len(entry.run_folders)))
    parts.append(RunFiles(home_run).output)
    texts = []
    for path in parts:
        try:
            texts.append(path.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
    return "\n".join(texts)


def question_about(home_run: Path, entry: Entry, language: str) -> Question:
    """What the doctor is asked about a job's last run."""
    return Question(
        what="diagnose",
        text=entry.text,
        suffix=entry.suffix,
        folder=entry.folder,
        where=Where.of(entry),
        overrides=tuple(entry.overrides),
        log=whole_log(home_run, entry),
        language=language,
    )


def report(home_run: Path) -> dict[str, Any] | None:
    """What the command of a job printed as JSON when it was done."""
    files = RunFiles(home_run)
    return files.read(files.result)
