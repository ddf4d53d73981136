"""Data that a job names and that is not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from plafond.errors import PlafondError
from plafond.job.document import KeyPath
from plafond.job.schema import Job, ProcessConfig
from plafond.job.section import nearest
from plafond.job.source import Source


def missing_folders(job: Job) -> list[PlafondError]:
    """Name every data folder and control image of a preview that does not exist, each once."""
    source = Source(job.path, job.lines, job.overrides)
    errors: list[PlafondError] = []
    named: set[str] = set()
    for index, process in enumerate(job.processes):
        for path, written, is_folder in _places(process):
            place = Path(written).expanduser()
            if written in named or place.exists():
                continue
            named.add(written)
            noun = "folder" if is_folder else "image"
            found = f"no such {noun}: {written}{_near(place)}"
            errors.append(source.error(("config", "process", index, *path), found))
    return errors


def _places(process: ProcessConfig) -> Iterator[tuple[KeyPath, str, bool]]:
    for index, dataset in enumerate(process.datasets):
        at: KeyPath = ("datasets", index)
        yield (*at, "folder_path"), dataset.folder_path, True
        for number, folder in enumerate(dataset.control_path):
            yield (*at, "control_path", number), folder, True
        if dataset.mask_path is not None:
            yield (*at, "mask_path"), dataset.mask_path, True
    for index, item in enumerate(process.sample.samples):
        for key in ("ctrl_img", "ctrl_img_1", "ctrl_img_2", "ctrl_img_3"):
            image = getattr(item, key)
            if image:
                yield ("sample", "samples", index, key), image, False


def _near(place: Path) -> str:
    """Suggest an existing neighbour, or say where the path stops existing."""
    parent = place.parent
    while not parent.is_dir() and parent != parent.parent:
        place, parent = parent, parent.parent
    try:
        siblings = [entry.name for entry in parent.iterdir()]
    except OSError:
        return ""
    near = nearest(place.name, siblings)
    return f"; did you mean {parent / near}?" if near else ""
