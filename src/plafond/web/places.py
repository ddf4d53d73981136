"""Where the page may read and write: the data folder, the output folder, and what its user allows beside them.

A path is judged by where it leads once every link is followed, never by how it is spelt.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from plafond.errors import PlafondError
from plafond.job.schema import Job, ProcessConfig
from plafond.job.wording import expanded, printable
from plafond.jobs.home import Home
from plafond.language.said import N_

WRITTEN_ELSEWHERE = N_(
    "{path} is elsewhere: the page writes runs only into {folders}; start it with --allow FOLDER, or queue the job in"
    " a terminal with plafond queue add"
)
READ_ELSEWHERE = N_(
    "{path} is elsewhere: the page reads pictures only from {folders}; start it with --allow FOLDER, or queue the job"
    " in a terminal with plafond queue add"
)

LONGEST_NAME = 100
"""Characters of a file's or folder's name that a user may choose."""

_RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?")
"""Names that Windows keeps for devices."""

_FORBIDDEN = frozenset('/\\:*?"<>|')


class OutsideError(PlafondError):
    """A path leads out of the folders that the page may use."""

    exit_code = 2


@dataclass(frozen=True)
class Places:
    """The folders of one page.

    Args:
        home: its home folder.
        allowed: more folders that jobs may read pictures from and write runs into.
    """

    home: Home
    allowed: tuple[Path, ...] = ()

    @property
    def readable(self) -> tuple[Path, ...]:
        """Where pictures of a job may come from."""
        return (self.home.datasets, *self.allowed)

    @property
    def writable(self) -> tuple[Path, ...]:
        """Where runs may go."""
        return (self.home.output, *self.allowed)

    def check(self, job: Job, folder: Path, known: Job | None = None) -> None:
        """Refuse a job that reads pictures or writes runs elsewhere.

        Args:
            job: the job.
            folder: where its relative paths start.
            known: the same job as its user queued it in a terminal, whose paths are allowed.

        Raises:
            JobError: with the key that leads out, its line, and what to do.
        """
        allowed = {
            (folder / expanded(path)).resolve()
            for process in (known.processes if known is not None else ())
            for _, path, _ in _paths(process, known.name if known is not None else "", folder)
        }
        for index, process in enumerate(job.processes):
            for key, path, writes in _paths(process, job.name, folder):
                roots = self.writable if writes else self.readable
                place = folder / expanded(path)
                if is_inside(place, roots) or place.resolve() in allowed:
                    continue
                text = WRITTEN_ELSEWHERE if writes else READ_ELSEWHERE
                raise job.error(key, text, process=index, path=path, folders=roots)


def is_inside(path: Path, roots: tuple[Path, ...]) -> bool:
    """Whether a path, with its links followed, is one of `roots` or below one."""
    try:
        real = path.resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links, or no path at all
        return False
    return any(real.is_relative_to(root.resolve()) for root in roots)


def inside(base: Path, name: str) -> Path:
    """The file or folder called `name` below `base`, which may be several levels deep.

    Raises:
        OutsideError: it is an absolute path, leads out of `base`, or through a link out of it.
    """
    parts = name.split("/")
    if not name or "\0" in name or "\\" in name or any(part in ("", ".", "..") for part in parts):
        raise OutsideError(
            N_("{name} is no name of something inside of {folder}"),
            name=repr(printable(name)),
            folder=base.name,
        )
    path = base.joinpath(*parts)
    if path.is_absolute() and is_inside(path, (base,)):
        return path
    raise OutsideError(N_("{name} leads out of {folder}"), name=repr(printable(name)), folder=base.name)


def valid_name(name: str) -> str:
    """A name that a user chose for a file or folder, as it will be on disk.

    Raises:
        OutsideError: it cannot be a name on every system.
    """
    found = unicodedata.normalize("NFC", name).strip()
    bad = (
        not found
        or len(found) > LONGEST_NAME
        or len(found.encode()) > 2 * LONGEST_NAME
        or found.startswith((".", "_"))
        or found.endswith(".")
        or any(mark in _FORBIDDEN or not mark.isprintable() for mark in found)
        or _RESERVED.fullmatch(found) is not None
    )
    if bad:
        raise OutsideError(
            N_(
                "{name} cannot be a name here: use letters, digits, spaces, - and _, and begin with a letter or digit"
            ),
            name=repr(printable(name)[:LONGEST_NAME]),
        )
    return found


def _paths(process: ProcessConfig, name: str, folder: Path) -> Iterator[tuple[str, str, bool]]:
    """Key, path and whether it is written to, of everything whose content a page could show or change."""
    yield "training_folder", process.training_folder, True
    yield "name", f"{process.training_folder}/{process.name or name}", True
    if process.plafond.latent_cache_dir is not None:
        yield "plafond.latent_cache_dir", process.plafond.latent_cache_dir, True
    for index, data in enumerate(process.datasets):
        at = f"datasets.{index}"
        yield f"{at}.folder_path", data.folder_path, False
        for control in data.control_path:
            yield f"{at}.control_path", control, False
        for key in ("mask_path", "inpaint_path"):
            if (masks := getattr(data, key)) is not None:
                yield f"{at}.{key}", masks, False
        if len(data.random_triggers) == 1 and (folder / expanded(data.random_triggers[0])).is_file():
            yield f"{at}.random_triggers", data.random_triggers[0], False
    for index, item in enumerate(process.sample.samples):
        for key in ("ctrl_img", "ctrl_img_1", "ctrl_img_2", "ctrl_img_3"):
            if (image := getattr(item, key)) is not None:
                yield f"sample.samples.{index}.{key}", image, False
